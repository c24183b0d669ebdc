"""ModelOnTables: a model whose parameters are in tables; evaluated, saved and restored as one.

    the model's parameters      [ a | b b b | c | d d ]    in their order, as a checkpoint has them: values by name, and
                                  |     |     |    |       the words that the optimizer keeps, [words a value, n values]
    dense table `dense.0`       [ a | c ]     |    |       [1] taken apart by parameter when tables are imported,
    dense table `dense.1`             [ b b b | d d ]      [2] put together when they are exported

So a checkpoint does not show which tables there were: a run with all parameters in one table, or with a table for
every stage, goes on from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heterps.arrays import FloatArray
from heterps.checkpoint import Snapshot
from heterps.checkpoint.stream import WEIGHTS
from heterps.config import Always, Eviction, Tables
from heterps.errors import NotFinite
from heterps.nn import weights
from heterps.ps.client.interface import JobClient
from heterps.ps.protocol.specs import TableSpec, TableSpecs
from heterps.ps.table.finite import first_not_finite
from heterps.ps.table.metadata import TableCounters
from heterps.ps.table.optimizers import initial_state, state_words
from heterps.ps.table.tiers import TierCounts
from heterps.training.model.errors import another_model
from heterps.training.model.in_use import ModelInUse, load_weights
from heterps.training.model.objectives import Objectives
from heterps.training.model.parameters import trainable
from heterps.training.model.table_snapshots import TableChanges, load_table, save_table


class DenseSource(Protocol):
    """Where dense tables are, as a JobClient has them: on servers, or with workers that keep them themselves."""

    def pull_dense(self, table: str) -> Future[FloatArray]: ...

    def fill_dense(self, table: str, values: FloatArray) -> Future[None]: ...

    def export_dense(self, table: str) -> tuple[FloatArray, FloatArray, int]: ...

    def import_dense(self, table: str, values: FloatArray, state: FloatArray, num_steps: int) -> None: ...


class ModelOnTables(ModelInUse):
    """`model` with the `tables` of `client`, and by dense table the names of its `parameters`, side by side in it.

    A subclass makes the parameters views of `_values`, by table, and gives embeddings their rows.
    """

    def __init__(
        self,
        model: nn.Module,
        tables: TableSpecs,
        parameters: Mapping[str, Sequence[str]],
        client: JobClient,
        objectives: Objectives,
        dense: DenseSource | None = None,
    ) -> None:
        super().__init__(model, objectives)
        self.tables = tables
        self.client = client
        self._dense: DenseSource = client if dense is None else dense
        self._values: dict[str, FloatArray] = {}
        self._places = _places(model, parameters)

    def refresh(self) -> None:
        """Load the newest parameters into the model."""
        pulls = {table: self._dense.pull_dense(table) for table in self._places}
        for table, pull in pulls.items():
            self._take_over(table, pull.result())

    @property
    def num_rows(self) -> int:
        return sum(self.client.num_rows(table) for table in self._sparse)

    @property
    def table_bytes(self) -> int:
        return sum(self.client.num_bytes(table) for table in self._sparse)

    @property
    def counters(self) -> TableCounters:
        """Rows of all tables that came and went, and gradients that were refused."""
        return TableCounters.total(self.client.counters(table) for table in self._sparse)

    @property
    def tier_counts(self) -> TierCounts | None:
        """What the tables have in memory and on disk, and what has moved; None without tiers."""
        counts = [count for table in self._sparse if (count := self.client.tier_counts(table)) is not None]
        return TierCounts.total(counts) if counts else None

    def table_fields(self, rules: Tables) -> dict[str, Any]:
        """Fields of a line of metrics.jsonl about the tables; what cannot have happened by the `rules` is left out."""
        fields: dict[str, Any] = {"rows": self.num_rows, "table_bytes": self.table_bytes}
        if rules.admission != Always() or rules.eviction != Eviction():
            fields["tables"] = self.counters._asdict()
        if (counts := self.tier_counts) is not None:
            fields["tiers"] = asdict(counts) | {"hit_rate": counts.hit_rate}
        return fields

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from `snapshot`, which the same model and optimizers made in any tables on any number of shards.

        The tables must be empty still, and torch's random state becomes that of the snapshot.
        """
        state, random = snapshot.dense["optimizer/state"], snapshot.dense["random/torch"]
        if differing := set(self._sparse) ^ set(snapshot.tables):
            raise another_model(f"only one of them has the tables {', '.join(sorted(differing))}")
        try:
            load_weights(self.model, snapshot)
            self._import_dense(state, snapshot.clock)
            for name, table in snapshot.tables.items():
                load_table(self.client, self._sparse[name], table)
        except (RuntimeError, ValueError) as error:
            raise another_model(str(error)) from error
        torch.set_rng_state(torch.from_numpy(random))
        self.clock = snapshot.clock

    def _snapshot(
        self, samples: int, progress: dict[str, Any], *, in_place: bool, changes: TableChanges | None = None
    ) -> Snapshot:
        """Everything that a later `restore` needs. The tables must have taken every push. See `save_table`."""
        state = self._export_dense()
        dense = self._weights(state)
        dense["optimizer/state"] = state
        dense["random/torch"] = torch.get_rng_state().numpy()
        tables = {
            name: save_table(self.client, spec, in_place=in_place, changes=changes)
            for name, spec in self._sparse.items()
        }
        return Snapshot(clock=self.clock, samples=samples, dense=dense, tables=tables, progress=progress)

    def _weights(self, state: FloatArray) -> dict[str, NDArray[Any]]:
        """Copies of the model's parameters and buffers. NotFinite where they, or the optimizer's state, are not."""
        self._require_finite(state)
        return {f"{WEIGHTS}{name}": _to_numpy(tensor) for name, tensor in weights(self.model).items()}

    @property
    def _sparse(self) -> dict[str, TableSpec]:
        return {spec.name: spec for spec in self.tables.sparse}

    def _export_dense(self) -> FloatArray:
        """The optimizer's state in the order of the model; its parameters become the newest."""
        whole = np.empty(_state_shape(self.tables), np.float32)
        for table, places in self._places.items():
            values, state, _ = self._dense.export_dense(table)
            self._take_over(table, values)
            words = state.reshape(len(whole), len(values))
            for in_model, in_table in places:
                whole[:, in_model] = words[:, in_table]  # [2]
        return whole.reshape(-1)

    def _require_finite(self, state: FloatArray) -> None:
        """NotFinite where a trained parameter or the optimizer's state would spoil a checkpoint."""
        bad = next((name for name, p in trainable(self.model).items() if not torch.isfinite(p).all()), None)
        if bad is None and first_not_finite(state) >= 0:
            bad = "(state of the dense optimizer)"
        if bad is not None:
            raise NotFinite(
                f"parameter {bad} is not finite after {self.clock} steps. It is not saved; the checkpoint before stays "
                "the newest. Lower the learning rate, and resume from it."
            )

    def _import_dense(self, state: NDArray[Any], num_steps: int) -> None:
        """Fill the empty tables with the model's parameters and this state, in the order of the model.

        `num_steps` is the clock of the job, and every table's number of steps, by which Adam corrects its means: a
        step is a push to each table. Only a table that stages share and push to apart, without rounds, has seen more.
        """
        words, num_values = _state_shape(self.tables)
        if state.shape != (words * num_values,):
            raise ValueError(f"the saved state has {state.size:,} words, this model needs {words * num_values:,}")
        whole = state.reshape(words, num_values)
        for table, places in self._places.items():
            parts = [whole[:, in_model] for in_model, _ in places]  # [1]
            self._dense.import_dense(
                table, self._values[table], np.hstack([whole[:, :0], *parts]).reshape(-1), num_steps
            )

    def _take_over(self, table: str, values: FloatArray) -> None:
        """Copy a table's newest values into the parameters, unless those are the table's own memory."""
        if not np.may_share_memory(values, self._values[table]):
            self._values[table][:] = values


def fresh_snapshot(model: nn.Module, tables: TableSpecs, progress: dict[str, Any]) -> Snapshot:
    """The snapshot of a model as it was built, before its first step; it has no rows.

    Groups of optimizers differ in rates only, so that all state begins with the same number.
    """
    shape = _state_shape(tables)
    initial = max((initial_state(spec.optimizer) for spec in tables.dense), default=0.0)
    dense = {f"model/{name}": _to_numpy(tensor) for name, tensor in weights(model).items()}
    dense["optimizer/state"] = np.full(math.prod(shape), initial, np.float32)
    dense["random/torch"] = torch.get_rng_state().numpy()
    return Snapshot(clock=0, samples=0, dense=dense, progress=progress)


def _state_shape(tables: TableSpecs) -> tuple[int, int]:
    """Words of optimizer state a value, the same in all dense tables, and values of them together."""
    words = max((state_words(spec.optimizer, 1) for spec in tables.dense), default=0)
    return words, sum(spec.size for spec in tables.dense)


def _places(model: nn.Module, parameters: Mapping[str, Sequence[str]]) -> dict[str, list[tuple[slice, slice]]]:
    """Return where the parameters of each dense table lie in the values of the model, and where in its own."""
    sizes = {name: parameter.numel() for name, parameter in trainable(model).items()}
    in_model = _side_by_side(list(sizes), sizes)
    return {
        table: [(in_model[name], in_table) for name, in_table in _side_by_side(names, sizes).items()]
        for table, names in parameters.items()
    }


def _side_by_side(names: Sequence[str], sizes: Mapping[str, int]) -> dict[str, slice]:
    ends = accumulate(sizes[name] for name in names)
    return {name: slice(end - sizes[name], end) for name, end in zip(names, ends, strict=True)}


def _to_numpy(tensor: Tensor) -> NDArray[Any]:
    return tensor.detach().cpu().clone().numpy()
