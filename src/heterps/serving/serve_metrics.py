"""What a scoring server tells Prometheus: requests, rows, times, batches, and the version in use."""

from __future__ import annotations

import time

from prometheus_client import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

__all__ = ["CONTENT_TYPE", "ServeMetrics"]

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


class ServeMetrics:
    """Counters of one server, in a registry of their own. Any thread may change them."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "heterps_serve_requests", "Requests by path and HTTP status.", ["path", "code"], registry=registry
        )
        self._seconds = Histogram(
            "heterps_serve_request_seconds",
            "Seconds from the head of a request to its answer.",
            ["path"],
            buckets=SECONDS,
            registry=registry,
        )
        self._rows = Counter("heterps_serve_rows", "Rows that were scored.", registry=registry)
        self._unknown = Counter(
            "heterps_serve_unknown_keys", "Keys that had no row, and read their initial values.", registry=registry
        )
        self._batch_rows = Histogram(
            "heterps_serve_batch_rows", "Rows of a batch, joined of requests.", buckets=SIZES, registry=registry
        )
        self._batch_requests = Histogram(
            "heterps_serve_batch_requests", "Requests of a batch.", buckets=SIZES, registry=registry
        )
        self._batch_seconds = Histogram(
            "heterps_serve_batch_seconds", "Seconds of scoring a batch.", buckets=SECONDS, registry=registry
        )
        self._waiting = Gauge("heterps_serve_queue_requests", "Requests that wait to be scored.", registry=registry)
        self._clock_of_version = Gauge(
            "heterps_serve_version_clock", "Clock of the version in use: steps of its training.", registry=registry
        )
        self._age = Gauge(
            "heterps_serve_version_age_seconds", "Seconds since the version in use was put in place.", registry=registry
        )
        self._versions = Counter(
            "heterps_serve_versions", "Versions that were put in place after the first.", registry=registry
        )
        self._refused = Counter(
            "heterps_serve_refused_versions", "Looks for a new version that failed.", registry=registry
        )
        self._since_s = time.monotonic()

    def request(self, path: str, code: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests.labels(path, str(code)).inc()
        self._seconds.labels(path).observe(seconds)

    def batch(self, num_requests: int, num_rows: int, num_unknown: int, seconds: float) -> None:
        """Count a batch that was scored."""
        self._batch_requests.observe(num_requests)
        self._batch_rows.observe(num_rows)
        self._batch_seconds.observe(seconds)
        self._rows.inc(num_rows)
        self._unknown.inc(num_unknown)

    def version(self, clock: int, *, is_new: bool = True) -> None:
        """Note that another version is in use."""
        self._clock_of_version.set(clock)
        self._since_s = time.monotonic()
        if is_new:
            self._versions.inc()

    def refused(self) -> None:
        """Count a version that could not be used."""
        self._refused.inc()

    @property
    def version_age_s(self) -> float:
        """Seconds since the version in use was put in place."""
        return time.monotonic() - self._since_s

    def text(self, num_waiting: int) -> bytes:
        """Return all figures in the text format of Prometheus."""
        self._waiting.set(num_waiting)
        self._age.set(self.version_age_s)
        return bytes(generate_latest(self._registry))
