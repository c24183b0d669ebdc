"""CoordinatorModel: the model of a job whose stages are apart, as the coordinator sees it.

    [model as built] --fill--> tables of stages on the servers <--push, pull-- workers: a stage's layers each
                      <--refresh, snapshot--      |
                      --restore-->                +--> evaluate: the whole model, here

It computes nothing in training. Rows come from the servers; buffers, such as running means, are the workers', who give
them for a snapshot or an evaluation and are given them after a restore.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heterps.checkpoint import Snapshot
from heterps.nn import bind_tables
from heterps.ps.client.interface import JobClient
from heterps.ps.table.changes import Reader
from heterps.training.model.buffers import load_buffers, model_buffers
from heterps.training.model.objectives import Objectives
from heterps.training.model.parameters import flat_parameters, trainable, view_parameters
from heterps.training.model.table_snapshots import TableChanges, changed_table
from heterps.training.model.tabled import DenseSource, ModelOnTables
from heterps.training.protocol.stage_tables import StageTables


class CoordinatorModel(ModelOnTables):
    """The model of a job with the tables of its stages, through a client of all servers.

    `dense` is where its dense tables are, if they are not on the servers.
    """

    def __init__(
        self,
        model: nn.Module,
        tables: StageTables,
        client: JobClient,
        objectives: Objectives,
        dense: DenseSource | None = None,
    ) -> None:
        super().__init__(model, tables.tables, tables.parameters, client, objectives, dense)
        own = trainable(model)
        for table, names in tables.parameters.items():
            self._values[table] = flat_parameters(model, names)
            view_parameters((own[name] for name in names), torch.from_numpy(self._values[table]))
        bind_tables(model, client)
        self._served_before_s: float | None = None  # seconds of servers that do not count

    def count_serving(self) -> None:
        """Count the seconds of servers from now on."""
        self._served_before_s = self._all_served_s()

    @contextmanager
    def serving_uncounted(self) -> Iterator[None]:
        """Leave out what servers do meanwhile."""
        counted_s = self.served_s
        yield
        now_s = self._all_served_s()
        self._served_before_s = None if counted_s is None or now_s is None else now_s - counted_s

    @property
    def served_s(self) -> float | None:
        """Seconds that a server has spent on messages, as the mean of all; None where that is not known: without
        servers or rows, or where a server was replaced."""
        before_s, now_s = self._served_before_s, self._all_served_s()
        return None if before_s is None or now_s is None or now_s < before_s else now_s - before_s

    def _all_served_s(self) -> float | None:
        table = next(iter(self._sparse), None)
        return self.client.served_s(table) if table is not None and self.client.is_remote else None

    def fill(self) -> None:
        """Give all dense tables the values of the model as it is; tables that have values keep theirs."""
        fills = [self._dense.fill_dense(table, values) for table, values in self._values.items()]
        for fill in fills:
            fill.result()

    def snapshot(
        self,
        clock: int,
        samples: int,
        progress: dict[str, Any],
        buffers: Mapping[str, Tensor | NDArray[Any]] = {},
        *,
        in_place: bool = False,
        changes: TableChanges | None = None,
    ) -> Snapshot:
        """Everything that a later `restore`, or that of a Trainer, needs to go on as if nothing had happened.

        `clock` is the number of updates of the job. No worker may push meanwhile, nor, where tables have tiers, until
        the snapshot is saved. `buffers` are the newest of the workers, and the model's own from now on.
        """
        self.clock = clock
        self.load_buffers(buffers)
        return self._snapshot(samples, progress, in_place=in_place, changes=changes)

    def changes(self, number: int, since: int, reader: Reader) -> TableChanges:
        """What version `number` for a reader has: what changed since another one, or all rows where that is unknown."""
        found = {table: self.client.keys_gone(table, since, reader) for table in self._sparse} if since else {}
        gone = {table: keys for table, keys in found.items() if keys is not None}
        is_known = len(gone) == len(self._sparse)
        return TableChanges(number, since if is_known else 0, gone if is_known else {})

    def version(self, clock: int, samples: int, changes: TableChanges, parent: str | None) -> Snapshot:
        """Return a version for programs that use the model: weights, buffers, and rows without optimizer state.

        parent  the name of the version since which rows have changed
        """
        self.clock = clock
        dense = self._weights(self._export_dense())
        tables = {name: changed_table(self.client, spec, changes) for name, spec in self._sparse.items()}
        return Snapshot(clock, samples, dense, tables, parent=parent if changes.since else None)

    def load_buffers(self, buffers: Mapping[str, Tensor | NDArray[Any]]) -> None:
        """Take over buffers of workers, before an evaluation. ValueError where the model has none like them."""
        load_buffers(self.model, buffers)

    def buffers_of(self, names: Iterable[str]) -> dict[str, NDArray[Any]]:
        """Copies of the model's buffers, as they were built, restored or last taken over."""
        own = model_buffers(self.model)
        return {name: own[name].numpy().copy() for name in names}
