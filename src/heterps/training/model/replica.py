"""Replica: what a worker computes with: a copy of one stage's layers, with parameters of its own.

    tables of the stage --load--> [values] --views--> parameters of the copy              [1]
    values, key ----------------> forward: a StageRun is kept under the key --> values    [2]
    values, label, key ---------> loss, in the last stage: forward and backward at once   [3]
    gradients, key -------------> backward of that run ------------------> gradients      [4]
                                     | adds to
                                  [grads] and the embeddings' rows --take_gradients--> to push

Several micro-batches may be under way in one replica: all see the same parameters, and their gradients add up. Batches
that must see different parameters need a replica each, and one thread at a time uses a replica.

The copy is of the model and the stage together, because the model's own loss uses the parameters of the stage's layers.
Parameters of other stages have no memory in it (torch's `meta` device), so that it is small and cannot use them unseen.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heterps.arrays import FloatArray
from heterps.devices import Precision, computing_in, random_state
from heterps.errors import ModelError, NotFinite
from heterps.lookups import PreparedSlots, RowGradients, RowUse, TableKeys, joined_gradients
from heterps.model.build import ONE_AT_A_TIME
from heterps.model.stages import StageModule, StageRun, Values
from heterps.model.trace import Trace
from heterps.nn import embeddings
from heterps.ps.client.interface import RowClient
from heterps.training.model.buffers import load_buffers, model_buffers, stage_buffers
from heterps.training.model.device import Device, open_device
from heterps.training.model.errors import GradientCheck, first_bad_parameter, own_code
from heterps.training.model.objectives import Objectives
from heterps.training.model.parameters import flat_parameters, view_parameters
from heterps.training.protocol.stage_tables import StageTables


class Replica:
    """A copy of one stage's layers with parameters of its own, for one or several micro-batches at once.

    `model`, its `trace` and the `stage`, which is number `number` of them from 0 on, stay as they are. Rows come from
    `rows`. Errors of the model's own code are ModelErrors that name stage and key; `forget` must follow them.

    values    memory of the parameters by dense table, to be shared with others; none: its own
    in_place  train the model itself, not a copy
    precision that of forward passes (see devices.computing_in)
    """

    def __init__(
        self,
        model: nn.Module,
        trace: Trace,
        stage: StageModule,
        tables: StageTables,
        number: int,
        is_last: bool,
        objectives: Objectives,
        rows: RowClient,
        device: Device | None = None,
        values: Mapping[str, Tensor] | None = None,
        *,
        in_place: bool = False,
        precision: Precision = "fp32",
    ) -> None:
        self._trace, self._number, self._objectives, self._rows = trace, number, objectives, rows
        self._is_whole = is_last and number == 0
        self._device = device or open_device("cpu")
        on = self._device.torch_device
        self._precision = precision
        used = set(tables.of_stage(number))
        self.values = (
            dict(values)
            if values is not None
            else {
                table: torch.from_numpy(flat_parameters(model, names)).to(on)
                for table, names in tables.parameters.items()
                if table in used
            }
        )
        frozen = tables.tables.frozen
        self._grads = {table: torch.zeros_like(values) for table, values in self.values.items() if table not in frozen}
        own = dict(model.named_parameters())
        names = {table: tables.parameters[table] for table in self.values}
        if in_place:
            self._model, self._stage = model, stage
            mine = {table: [own[name] for name in names[table]] for table in names}
        else:
            copies = _copies(model, stage, is_last, on)
            mine = {
                table: [_empty(own[name], values) for name in names[table]] for table, values in self.values.items()
            }
            for table, parameters in mine.items():
                copies |= {id(own[name]): copied for name, copied in zip(names[table], parameters, strict=True)}
            self._model, self._stage = copy.deepcopy((model, stage), copies)
        for table, parameters in mine.items():
            view_parameters(parameters, self.values[table], self._grads.get(table))
            for parameter in parameters:
                parameter.requires_grad_(table not in frozen)
        self._model.train()
        self._buffers = stage_buffers(model, trace, stage, is_last=is_last)
        self._embeddings = []
        for name, module in embeddings(self._model):
            of_module = module.names_in(name)
            if not used.isdisjoint(of_module):
                module.bind(rows, of_module, frozen)
                self._embeddings.append(module)
        self._runs: dict[Hashable, StageRun] = {}
        self._is_taken = False  # gradients that are to be zero before the next run
        self._check = GradientCheck(model, names)
        self._draws: bool | None = None  # random numbers, in forward; None until it was tried

    def load(self, dense: Mapping[str, FloatArray]) -> None:
        """Copy values of the stage's dense tables into the parameters. [1] No run may be under way."""
        assert not self._runs, f"runs of {sorted(map(str, self._runs))} would see two versions of the parameters"
        for table, values in dense.items():
            own = self.values[table]
            if own.device.type == "cpu":
                if values.ctypes.data != own.data_ptr():  # else they are its own
                    np.copyto(own.numpy(), values)
            else:
                own.copy_(self._device.bring(values))

    def forward(self, key: Hashable, values: Values, seed: int | None = None) -> dict[str, Any]:
        """The values to send on, which say by `requires_grad` whether they want gradients; backward will need `key`.

        A stage that draws random numbers, as Dropout does, draws them from `seed`. They are torch's own, so that in
        threads of one process such stages take turns; whatever else draws there finds the state as it was.
        """
        assert key not in self._runs, f"{key} is under way"
        self._drop_taken()
        with self._own_code(key, values), self._seeded(seed), self._computing():
            run = StageRun(self._stage, self._device.bring_all(values))  # [2]
        self._runs[key] = run
        return self._device.fetch_all(run.outputs)

    def loss(
        self, key: Hashable, values: Values, label: Tensor, num_samples: int | None, seed: int | None = None
    ) -> tuple[float, NDArray[np.float32], dict[str, Any]]:
        """Forward and backward of the last stage: the loss, the logits, and the gradients of `values`, where any. [3]

        With `num_samples`, those of the whole batch, the loss is what these samples add to the mean over all; without,
        they are the batch. A loss that is not finite raises NotFinite and adds no gradients.
        """
        self._drop_taken()
        with self._own_code(key, values), self._seeded(seed):
            with self._computing():
                run = StageRun(self._stage, self._device.bring_all(values))
                output = self._objectives.checked(self._model, self._trace.output(run.outputs), len(label))
                loss = self._objectives.loss(self._model, output, self._device.bring(label), num_samples)
            found = float(loss.detach())
            if not math.isfinite(found):
                raise NotFinite(self._bad_loss(key, found))
            loss.backward()  # type: ignore[no-untyped-call]
            return (
                found,
                self._device.fetch(self._objectives.scores(output)).numpy(),
                self._device.fetch_all(run.backward({})),
            )

    def backward(self, key: Hashable, gradients: Values) -> dict[str, Any]:
        """The gradients of the inputs of a run, given those of its outputs; only where there are any. [4]"""
        run = self._runs.pop(key)
        with self._own_code(key):
            return self._device.fetch_all(run.backward(self._device.bring_all(gradients)))

    def take_gradients(self) -> tuple[dict[str, FloatArray], list[RowGradients]]:
        """Gradients of all runs since the last call, for every dense table of the stage and of rows.

        They are good until the next run begins. NotFinite where one is NaN or infinite.
        """
        dense = self.take_dense()
        uses = self.take_uses()
        rows = joined_gradients(uses, self._rows.num_shards)
        self._check(dense, rows, uses, f"in stage {self._number + 1}")
        return dense, rows

    def take_dense(self) -> dict[str, FloatArray]:
        """Gradients of the dense tables. They are zero again when the next run begins, or when they are taken again."""
        self._drop_taken()
        self._is_taken = True
        return {table: self._device.fetch(grads).numpy() for table, grads in self._grads.items()}

    def take_uses(self) -> list[RowUse]:
        """The uses of rows that backward has reached since the last call."""
        return [use for module in self._embeddings for use in module.take_uses()]

    def check_rows(self, key: Hashable) -> None:
        """Raise NotFinite where a gradient of a row is NaN or infinite, of those that `take_uses` would give."""
        uses = [use for module in self._embeddings for use in module.uses]
        found = [RowGradients(use.table, use.part.lookup, use.gradient) for use in uses]
        self._check({}, found, uses, f"of step {_step(key)}" if self._is_whole else f"in stage {self._number + 1}")

    def add_dense(self, other: Replica) -> None:
        """Add the dense gradients of another replica to these; the other's are zero then."""
        self._drop_taken()
        for table, grads in self._grads.items():
            grads.add_(other._grads[table])
            other._grads[table].zero_()

    def output(self, values: Values) -> Any:
        """What the model returns for `values`, without any gradient."""
        with torch.no_grad():
            return self._trace.output(self._stage(values))

    def drop(self, key: Hashable) -> None:
        """Drop a run, if there is one, whose backward will not come."""
        self._runs.pop(key, None)

    def forget(self) -> None:
        """Drop all runs and gradients, after an error or for a new layout."""
        self._runs.clear()
        self._is_taken = True
        self._drop_taken()
        self.take_uses()

    def _drop_taken(self) -> None:
        if self._is_taken:
            for grads in self._grads.values():
                grads.zero_()
            self._is_taken = False

    def prepare(self, slots: PreparedSlots) -> None:
        """Work out ahead of use, in any thread, which rows `forward` will ask for."""
        with own_code(self._model, f"in stage {self._number + 1} on {len(slots)} samples"):
            for module in self._embeddings:
                module.prepare(slots)

    def parts(self, slots: PreparedSlots) -> list[tuple[str, TableKeys]]:
        """What `forward` will ask for: each table of the stage's embeddings with its keys."""
        found = (part for module in self._embeddings for part in module.parts(slots))
        return list(dict.fromkeys(found))  # modules that share a table may ask for the same keys

    def buffers(self) -> dict[str, Tensor]:
        """Copies of what the stage's layers know besides parameters, by the model's names (see buffers.py)."""
        own = model_buffers(self._model)
        return {name: self._device.fetch(own[name].clone()) for name in self._buffers}

    def load_buffers(self, buffers: Mapping[str, Tensor | NDArray[Any]]) -> None:
        """Copy these into the replica's own. ValueError where it has none like them."""
        load_buffers(self._model, buffers)

    def _computing(self) -> AbstractContextManager[Any]:
        return computing_in(self._precision, self._device.torch_device)

    @contextmanager
    def _seeded(self, seed: int | None) -> Iterator[None]:
        """Draw random numbers of a forward from `seed`. A stage that drew none the first time is left alone."""
        if seed is None or self._draws is False:
            yield
            return
        with ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            before = random_state(self._device.torch_device)
            yield
            self._draws = self._draws or not torch.equal(before, random_state(self._device.torch_device))

    @contextmanager
    def _own_code(self, key: Hashable, values: Values = MappingProxyType({})) -> Iterator[None]:
        when = f"in stage {self._number + 1} on micro-batch {key}"
        if self._is_whole:
            num_samples = next((len(value) for value in values.values()), 0)
            when = f"on a batch of {num_samples} samples after {_step(key) - 1} steps"
        try:
            with own_code(self._model, when):
                yield
        except ModelError as error:
            if isinstance(error.__cause__, RuntimeError) and re.search(r"\bmeta\b", str(error.__cause__)):
                # torch met a parameter that has no memory
                raise ModelError(
                    f"the loss of {type(self._model).__name__}, in stage {self._number + 1}, uses parameters of layers "
                    "of another stage. Put the layers that its loss uses into the last stage, or all into one."
                ) from error.__cause__
            raise

    def _bad_loss(self, key: Hashable, loss: float) -> str:
        here = ((name, p) for name, p in self._model.named_parameters() if not p.is_meta)
        bad = first_bad_parameter(here, "" if self._is_whole else " of this stage")
        what = f"step {_step(key)}" if self._is_whole else f"micro-batch {key} in stage {self._number + 1}"
        return f"the loss of {what} is {loss}. {bad}"


def _step(key: Hashable) -> int:
    """The number of a step, from 1 on, by the key of its micro-batch: the step itself, or an iteration and a lane."""
    return int(key[0]) if isinstance(key, tuple) else int(str(key))


def _copies(model: nn.Module, stage: StageModule, is_last: bool, device: torch.device) -> dict[int, Any]:
    """What stands in a copy for the tensors of `model`, by their ids, as copy.deepcopy takes it.

    Buffers and parameters that are not trained are copied where the stage, or the model's own loss in the last stage,
    may use them. Everything else has no memory.
    """
    used = {id(tensor) for tensor in (*stage.module.buffers(), *stage.module.parameters())}
    copies: dict[int, Any] = {}
    for buffer in (*model.buffers(), *stage.module.buffers()):
        here = is_last or id(buffer) in used
        copies[id(buffer)] = buffer.detach().to(device, copy=True) if here else torch.empty_like(buffer, device="meta")
    for parameter in model.parameters():
        here = not parameter.requires_grad and (is_last or id(parameter) in used)
        data = parameter.detach().to(device, copy=True) if here else torch.empty_like(parameter, device="meta")
        copies[id(parameter)] = nn.Parameter(data, parameter.requires_grad)
    return copies


def _empty(parameter: nn.Parameter, like: Tensor) -> nn.Parameter:
    return nn.Parameter(like.new_empty(parameter.shape))
