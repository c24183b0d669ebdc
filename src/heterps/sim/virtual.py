"""Training for real on a simulated clock: every gradient is computed with the weights that its worker would have had.

    simulator    start(w0)     start(w1)      push(w0)         push(w1)         end_round
                    |             |              |                |                 |
    here         gradients     gradients      applied          applied        the mean of a round
                 of the weights as they       as the server would: at once,   (BSP only)
                 are at that moment           or kept for the round

A worker's gradient is computed when it starts, because nothing that happens until its push can change it; it is applied
when its push arrives. So one process plays any number of workers of any speeds, and a seed repeats the run to the bit.
Only what a worker keeps to itself is not played: buffers, as BatchNorm has them, are shared by all.

    one worker, ASP                  ordinary training, to the bit
    P workers, BSP                   ordinary training: they divide each batch, and their gradients are averaged
    P workers, ASP, SSP, DSSP        as many updates, each of a whole batch, and P - 1 updates late
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from heterps.arrays import FloatArray
from heterps.config import Job
from heterps.data.batch import Batch
from heterps.data.fit import fit_job
from heterps.data.reader import open_reader
from heterps.errors import ConfigError, NotFinite
from heterps.model import build_model
from heterps.ps.client.local import LocalClient
from heterps.sim.course import Course, Curve, Point, VirtualRun, expected_samples, read_test
from heterps.sim.played import train_simulated, why_not_as_job
from heterps.sim.scenario import Scenario
from heterps.sim.simulator import Hooks, Simulator
from heterps.sim.steps import compensate, damping, mean_of, sum_of
from heterps.sim.supply import Supply, read_epochs
from heterps.sim.variants import Variant
from heterps.threads import torch_threads
from heterps.training.model.objectives import Objectives
from heterps.training.model.trainer import Gradients, Trainer


class _PendingGradient(NamedTuple):
    """A gradient on its way to the server, with what the server needs to know of it."""

    batch: Batch
    gradients: Gradients
    version: int  # updates that its weights had taken
    dense: dict[str, FloatArray] | None  # the weights, where they are needed again
    rows: dict[str, FloatArray]


class Training(Hooks):
    """Computes gradients of `trainer` for a simulator, on `sizes` samples of each worker, until `supply` ends.

    Training that diverges ends like any other, and says so in `failed`.
    """

    def __init__(
        self,
        trainer: Trainer,
        supply: Supply,
        variant: Variant,
        sizes: Mapping[str, int],
        curve: Curve,
    ) -> None:
        assert isinstance(trainer.client, LocalClient)
        self.updates = self.dropped_samples = 0
        self._diverged: str | None = None
        self._trainer, self._client = trainer, trainer.client
        self._supply, self._variant, self._sizes = supply, variant, sizes
        self._curve = curve
        self._pending: dict[str, _PendingGradient] = {}
        self._round: list[Gradients] = []

    def start(self, worker: str, now: float) -> bool:  # noqa: ARG002
        batch = None if self.failed else self._supply.take(self._sizes[worker])
        if batch is None:
            return False
        try:
            gradients = self._trainer.gradients(batch)
        except NotFinite as error:
            self._diverged = str(error)
            return False
        dense, rows = self._weights(gradients) if self._variant.compensation else (None, {})
        self._pending[worker] = _PendingGradient(batch, gradients, self.updates, dense, rows)
        return True

    def push(self, worker: str, now: float) -> None:
        pending = self._pending.pop(worker)
        if self._variant.by_rounds:
            self._round.append(pending.gradients)
        else:
            self._apply(self._adjusted(pending), self.updates - pending.version, now)

    def drop(self, worker: str, now: float) -> None:  # noqa: ARG002
        self.dropped_samples += self._pending.pop(worker).gradients.num_samples

    def lose(self, worker: str, now: float) -> None:  # noqa: ARG002
        if worker in self._pending:
            self._supply.give_back(self._pending.pop(worker).batch)

    def end_round(self, now: float) -> None:
        if self._round:
            gradients, self._round = (sum_of if self._variant.summed else mean_of)(self._round), []
            self._apply(gradients, 0, now)

    def finish(self, now: float) -> None:
        """Adds the last point: the model at the end."""
        if not self.failed:
            self._curve.finish(now, self._trainer.samples, self.updates)

    @property
    def failed(self) -> str | None:
        return self._diverged or self._curve.failed

    def _apply(self, gradients: Gradients, staleness: int, now: float) -> None:
        if self.failed:
            return
        if self._variant.damped:
            self._client.set_rate(damping(staleness))
        self._trainer.apply(gradients)
        self.updates += 1
        self._curve.step(now, self._trainer.samples, self.updates)

    def _weights(self, gradients: Gradients) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
        """Copies of the weights that the gradients were computed with. Reading them creates no rows."""
        dense = {table: self._client.pull_dense(table).result().copy() for table in gradients.dense}
        pulls = {part.table: self._client.pull(part.table, part.lookup, create=False) for part in gradients.rows}
        return dense, {table: pull.result() for table, pull in pulls.items()}

    def _adjusted(self, pending: _PendingGradient) -> Gradients:
        if pending.dense is None:
            return pending.gradients
        dense, rows = self._weights(pending.gradients)
        return compensate(
            pending.gradients,
            self._variant.compensation,
            dense={table: (pending.dense[table], values) for table, values in dense.items()},
            rows={table: (pending.rows[table], rows[table]) for table in rows},
        )


def train_virtually(
    job: Job,
    scenario: Scenario,
    variant: Variant,
    course: Course = Course(),
    on_point: Callable[[Point], None] = lambda _: None,
    *,
    as_job: bool | None = None,
) -> VirtualRun:
    """Trains `job` on the workers of `scenario`, which take its seconds for a whole batch, in step as `variant` says.

    It ends with the last epoch, or where the scenario ends if that is sooner. The random numbers of model, data and
    jitter follow scenario.seed, and torch has one thread, so that a run is the same wherever it is repeated. Parameters
    are in memory: servers and tiers of the job are not used.

    as_job  play it by the engine of real runs (see played.py); None: if that can do what the variant does
    """
    if job.data.test is None:
        raise ConfigError("a virtual run is judged on a test set: name one in data.test of the job.")
    job = fit_job(job)
    if not why_not_as_job(job, scenario, [variant]) if as_job is None else as_job:
        return train_simulated(job, scenario, variant, course, on_point)
    epochs, seed, batch_size = course.epochs or job.data.epochs, scenario.seed, job.data.batch_size
    played, sizes = variant.fit(scenario, batch_size)
    columns = job.data.columns
    reader = open_reader(job, seed=seed)
    test = read_test(job)
    model = build_model(job.model, columns, seed)
    with torch_threads(1), torch.random.fork_rng(devices=[]), Trainer(
        model, job.optimizers, tables=job.tables, seed=seed, columns=columns, precision=job.precision
    ) as trainer:  # fmt: skip
        torch.default_generator.manual_seed(seed)
        most = expected_samples(scenario, batch_size, reader.num_rows * epochs)
        curve = Curve(max(most // course.points, 1), lambda: trainer.evaluate(test), on_point)
        training = Training(
            trainer,
            Supply(read_epochs(reader, epochs), batch_size),
            variant,
            sizes,
            curve,
        )
        sim = Simulator(played, variant.policy, hooks=training).run()
        training.finish(sim.end_s)
        return VirtualRun(
            variant=variant,
            seed=seed,
            measure=Objectives(columns).metrics().measure,
            sim=sim,
            points=tuple(curve.points),
            samples=trainer.samples,
            dropped_samples=training.dropped_samples,
            failed=training.failed,
        )
