"""Workers as a run has measured them: how long every iteration took, read from the traces of its policies.

    RUN/traces/stage-1.jsonl    released lane-0  3.10        lane-0  0.42, 0.40, 1.93, ... s
                                pushed   lane-0  3.52   -->  lane-1  0.41, 0.44, 0.39, ... s
                                released lane-0  3.52

A lane pushes its first stage last, and in rounds all workers of a stage wait for each other, so the trace of the first
stage has whole iterations. The first iteration of a worker is left out: it is longer, because everything is new.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from heterps.config import PolicyConfig
from heterps.errors import RunError
from heterps.sync.trace import read_trace

LEAST = 10
"""Number of measured iterations below which a worker is not known well enough to be played."""


@dataclass(frozen=True)
class MeasuredWorkers:
    """The workers of a run, or its lanes where it has no rounds, and the policy that kept them in step."""

    policy: PolicyConfig
    seconds: dict[str, tuple[float, ...]]
    """Seconds of each worker's iterations, from the go-ahead to the push, one after the other."""

    @property
    def busy_s(self) -> float:
        """Seconds that the busiest worker computed in all."""
        return max(map(sum, self.seconds.values()))

    def of_whole_batches(self) -> MeasuredWorkers:
        """The same, if each worker took a whole batch at once, and not an equal share of it."""
        num = len(self.seconds)
        return replace(self, seconds={name: tuple(num * s for s in own) for name, own in self.seconds.items()})

    @property
    def means(self) -> tuple[float, ...]:
        return tuple(sum(seconds) / len(seconds) for seconds in self.seconds.values())


def read_measured(run: Path) -> MeasuredWorkers:
    """Read the workers of the run in the folder `run`, from the longest trace of its first stage. Raises RunError."""
    traces = sorted((run / "traces").glob("stage-1[.-]*jsonl"), key=lambda path: path.stat().st_size)
    if not traces:
        raise RunError(
            f"{run}: there is no trace of its policy, traces/stage-1.jsonl. Every `heterps train` writes one: train "
            "the job on your workers for a minute, with `heterps train job.yaml --launcher local`, and name it here."
        )
    header, events = read_trace(traces[-1])
    released = dict.fromkeys(header.workers, header.now)
    seconds: dict[str, list[float]] = {}
    for event in events:
        if event.kind == "released":
            released[event.worker] = event.now
        elif event.kind in ("pushed", "dropped"):
            seconds.setdefault(event.worker, []).append(event.now - released[event.worker])
    known = {worker: tuple(took[1:]) for worker, took in sorted(seconds.items(), key=_by_number) if len(took) > LEAST}
    if not known:
        raise RunError(
            f"{traces[-1]}: no worker has {LEAST + 1} iterations, too few to know how long they take. Train longer, or "
            "on smaller batches (data.batch_size)."
        )
    return MeasuredWorkers(header.policy, known)


def _by_number(item: tuple[str, object]) -> tuple[int, str]:
    """Orders lane-2 before lane-10."""
    return len(item[0]), item[0]
