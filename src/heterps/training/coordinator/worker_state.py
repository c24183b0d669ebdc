"""WorkerState: what the workers of a job have and its servers have not, as the coordinator keeps it between cuts.

buffers of layers, such as running means       of the first worker of each stage: others have their own
dense parameters that workers reduce           the same at all workers of a stage
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from heterps.model.stages import split
from heterps.model.trace import Trace
from heterps.ps.client.local import LocalClient, in_process
from heterps.ps.protocol.specs import TableSpecs
from heterps.training.coordinator.model import CoordinatorModel
from heterps.training.model.buffers import model_buffers, stage_buffers
from heterps.training.protocol.stage_tables import StageTables


class WorkerState:
    """`is_reduced`: dense tables are not on the servers. `dense` is then where a CoordinatorModel finds them.

    Set `model` before the first use: it keeps the buffers.
    """

    model: CoordinatorModel

    def __init__(
        self, model: nn.Module, trace: Trace, tables: StageTables, firsts: tuple[int, ...], is_reduced: bool
    ) -> None:
        stages = split(trace, firsts[1:])
        self._buffers = [stage_buffers(model, trace, stage, is_last=stage is stages[-1]) for stage in stages]
        self._tables = tables
        self.dense: LocalClient | None = in_process(TableSpecs((), tables.tables.dense)) if is_reduced else None
        self.is_any = is_reduced or bool(model_buffers(model))

    def of_stage(self, number: int) -> dict[str, Any]:
        """What a worker of a stage begins with, as a tree that can cross."""
        buffers = self.model.buffers_of(self._buffers[number])
        state: dict[str, Any] = {
            "buffers": {name: torch.from_numpy(array) for name, array in buffers.items()},
            "dense": {},
        }
        if self.dense is not None:
            for table in set(self._tables.of_stage(number)) & set(self._tables.parameters):
                values, words, num_steps = self.dense.export_dense(table)
                state["dense"][table] = {
                    "values": torch.from_numpy(values),
                    "state": torch.from_numpy(words),
                    "num_steps": num_steps,
                }
        return state

    def take(self, state: Mapping[str, Any]) -> None:
        """Keep what a worker gave."""
        self.model.load_buffers(state["buffers"])
        for table, kept in state["dense"].items():
            assert self.dense is not None
            self.dense.import_dense(table, np.asarray(kept["values"]), np.asarray(kept["state"]), kept["num_steps"])
