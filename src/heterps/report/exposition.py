"""The text that Prometheus reads, of figures that are taken when it asks."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


def text_of(families: Iterable[Metric]) -> bytes:
    """Return the text of these families of figures."""
    registry = CollectorRegistry()
    registry.register(_Taken(families))
    return generate_latest(registry)


class _Taken(Collector):
    """Families as the registry wants them; it asks for them several times."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families
