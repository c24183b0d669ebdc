"""Where the dense parameters of a worker's stage are kept in step: on the servers, or among the workers themselves.

ServedDense     pull --> servers --> values               push: a contribution to the round, or an update of its own
ReducedDense    values are here, the same at all          push: gradients are added up by all workers, and each
                workers of the stage                            takes the optimizer's step for itself
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import torch

from heterps.arrays import FloatArray
from heterps.ps.client.interface import Client
from heterps.ps.client.local import done
from heterps.ps.protocol.messages import Iteration, Round
from heterps.ps.protocol.specs import TableSpecs
from heterps.ps.table.dense import DenseTable
from heterps.training.worker.all_reduce import AllReduce, LocalDense


class DenseParts(Protocol):
    """The dense tables of one worker."""

    def pull(self) -> dict[str, Future[FloatArray]]:
        """Return the newest values of each table, which the caller must not change."""

    def push(self, table: str, grads: FloatArray, samples: int, round: Round | Iteration | None) -> Future[None]:
        """Push the gradient of every value of a table."""

    def state(self) -> dict[str, dict[str, Any]]:
        """Return the state that only this worker has, by table."""

    def close(self) -> None: ...


class ServedDense:
    def __init__(self, client: Client, tables: list[str]) -> None:
        self._client, self._tables = client, tables

    def pull(self) -> dict[str, Future[FloatArray]]:
        return {table: self._client.pull_dense(table) for table in self._tables}

    def push(self, table: str, grads: FloatArray, samples: int, round: Round | Iteration | None) -> Future[None]:  # noqa: ARG002
        return self._client.push_dense(table, grads, round)

    def state(self) -> dict[str, dict[str, Any]]:
        return {}

    def close(self) -> None:
        """Do nothing, because the client belongs to the worker."""


class ReducedDense:
    """`members` are the workers that have a table, in one order for all; `state` is what each of them begins with."""

    def __init__(
        self,
        tables: TableSpecs,
        members: Mapping[str, tuple[str, ...]],
        own: str,
        state: Mapping[str, Mapping[str, Any]],
        store: Callable[[str], Path | str],
        deadline_s: float,
    ) -> None:
        self._dense: dict[str, LocalDense] = {}
        self._groups: list[AllReduce] = []
        try:
            for spec in [spec for spec in tables.dense if spec.name in members]:
                begin = state[spec.name]
                table = DenseTable(spec.size, spec.optimizer, spec.schedule)
                table.values[:] = begin["values"].numpy()
                table.restore(begin["state"].numpy(), begin["num_steps"])
                group = AllReduce(members[spec.name], own, store(spec.name), deadline_s=deadline_s)
                self._groups.append(group)
                self._dense[spec.name] = LocalDense(table, group)
        except BaseException:
            self.close()
            raise

    def pull(self) -> dict[str, Future[FloatArray]]:
        return {name: done(dense.table.values) for name, dense in self._dense.items()}

    def push(self, table: str, grads: FloatArray, samples: int, round: Round | Iteration | None) -> Future[None]:  # noqa: ARG002
        self._dense[table].step(grads, samples)
        return done(None)

    def state(self) -> dict[str, dict[str, Any]]:
        return {name: dense_state(dense.table) for name, dense in self._dense.items()}

    def close(self) -> None:
        for group in self._groups:
            group.close()


def dense_state(table: DenseTable) -> dict[str, Any]:
    """A dense table as a tree that can cross to another process."""
    return {
        "values": torch.from_numpy(table.values.copy()),
        "state": torch.from_numpy(table.state.copy()),
        "num_steps": table.num_pushes,
    }
