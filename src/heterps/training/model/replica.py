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
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heterps.data.batch import Slots
from heterps.devices import random_state
from heterps.errors import ModelError, NotFinite
from heterps.model.build import ONE_AT_A_TIME
from heterps.model.stages import StageModule, StageRun, Values
from heterps.model.trace import Trace
from heterps.nn import RowGradients, embeddings
from heterps.ps.client.local import FloatArray, RowClient
from heterps.ps.keys.dedup import Lookup
from heterps.training.model.buffers import load_buffers, model_buffers, stage_buffers
from heterps.training.model.device import Device, open_device
from heterps.training.model.errors import GradientCheck, first_bad_parameter, own_code
from heterps.training.model.losses import batch_loss, checked_output, logits_of, piece_loss
from heterps.training.model.pieces import trainable, view_parameters
from heterps.training.model.tabled import flat_parameters
from heterps.training.protocol.stage_tables import StageTables


class Replica:
    """A copy of one stage's layers with parameters of its own, for one or several micro-batches at once.

    `model`, its `trace` and the `stage`, which is number `number` of them from 0 on, stay as they are. Rows come from
    `rows`. Errors of the model's own code are ModelErrors that name stage and key; `forget` must follow them.
    """

    def __init__(
        self,
        model: nn.Module,
        trace: Trace,
        stage: StageModule,
        tables: StageTables,
        number: int,
        is_last: bool,
        num_classes: int,
        rows: RowClient,
        device: Device | None = None,
    ) -> None:
        self._trace, self._number, self._num_classes = trace, number, num_classes
        self._device = device or open_device("cpu")
        on = self._device.torch_device
        used = set(tables.of_stage(number))
        self._values = {
            table: torch.from_numpy(flat_parameters(model, names)).to(on)
            for table, names in tables.parameters.items()
            if table in used
        }
        self._grads = {table: torch.zeros_like(values) for table, values in self._values.items()}
        copies = _copies(model, stage, is_last, on)
        own = trainable(model)
        for table, values in self._values.items():
            parameters = {
                id(own[name]): nn.Parameter(values.new_empty(own[name].shape)) for name in tables.parameters[table]
            }
            view_parameters(parameters.values(), values, self._grads[table])
            copies |= parameters
        self._model, self._stage = copy.deepcopy((model, stage), copies)
        self._model.train()
        self._buffers = stage_buffers(model, trace, stage, is_last=is_last)
        self._embeddings = []
        for name, module in embeddings(self._model):
            names = module.names_in(name)
            if not used.isdisjoint(names):
                module.bind(rows, names)
                self._embeddings.append(module)
        self._runs: dict[Hashable, StageRun] = {}
        self._check = GradientCheck(model, {table: tables.parameters[table] for table in self._values})
        self._draws: bool | None = None  # random numbers, in forward; None until it was tried

    def load(self, dense: Mapping[str, FloatArray]) -> None:
        """Copy values of the stage's dense tables into the parameters. [1] No run may be under way."""
        assert not self._runs, f"runs of {sorted(map(str, self._runs))} would see two versions of the parameters"
        for table, values in dense.items():
            self._values[table].copy_(self._device.bring(values))

    def forward(self, key: Hashable, values: Values, seed: int | None = None) -> dict[str, Any]:
        """The values to send on, which say by `requires_grad` whether they want gradients; backward will need `key`.

        A stage that draws random numbers, as Dropout does, draws them from `seed`. They are torch's own, so that in
        threads of one process such stages take turns; whatever else draws there finds the state as it was.
        """
        assert key not in self._runs, f"{key} is under way"
        with self._own_code(key), self._seeded(seed):
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
        with self._own_code(key), self._seeded(seed):
            run = StageRun(self._stage, self._device.bring_all(values))
            output = checked_output(self._model, self._trace.output(run.outputs), len(label), self._num_classes)
            label = self._device.bring(label)
            if num_samples is None:
                loss = batch_loss(self._model, output, label)
            else:
                loss = piece_loss(self._model, output, label, num_samples)
            found = float(loss.detach())
            if not math.isfinite(found):
                raise NotFinite(self._bad_loss(key, found))
            loss.backward()  # type: ignore[no-untyped-call]
            return (
                found,
                logits_of(self._device.fetch(output), self._num_classes),
                self._device.fetch_all(run.backward({})),
            )

    def backward(self, key: Hashable, gradients: Values) -> dict[str, Any]:
        """The gradients of the inputs of a run, given those of its outputs; only where there are any. [4]"""
        run = self._runs.pop(key)
        with self._own_code(key):
            return self._device.fetch_all(run.backward(self._device.bring_all(gradients)))

    def take_gradients(self) -> tuple[dict[str, FloatArray], list[RowGradients]]:
        """Gradients of all runs since the last call: copies for every dense table of the stage, and those of rows.

        NotFinite where one is NaN or infinite; they are dropped then.
        """
        dense = {table: self._device.fetch(grads.clone()).numpy() for table, grads in self._grads.items()}
        for grads in self._grads.values():
            grads.zero_()
        rows = [taken for module in self._embeddings for taken in module.take_gradients()]
        self._check(dense, rows, f"in stage {self._number + 1}")
        return dense, rows

    def forget(self) -> None:
        """Drop all runs and gradients, after an error or for a new layout."""
        self._runs.clear()
        for grads in self._grads.values():
            grads.zero_()
        for module in self._embeddings:
            module.take_gradients()

    def prepare(self, slots: Slots) -> None:
        """Work out ahead of use, in any thread, which rows `forward` will ask for."""
        with own_code(self._model, f"in stage {self._number + 1} on {len(slots)} samples"):
            for module in self._embeddings:
                module.prepare(slots)

    def lookups(self, slots: Slots) -> list[tuple[str, Lookup]]:
        """What `forward` will ask for: each table of the stage's embeddings with its lookup."""
        return [found for module in self._embeddings for found in module.lookups(slots)]

    def buffers(self) -> dict[str, Tensor]:
        """Copies of what the stage's layers know besides parameters, by the model's names (see buffers.py)."""
        own = model_buffers(self._model)
        return {name: self._device.fetch(own[name].clone()) for name in self._buffers}

    def load_buffers(self, buffers: Mapping[str, Tensor | NDArray[Any]]) -> None:
        """Copy these into the replica's own. ValueError where it has none like them."""
        load_buffers(self._model, buffers)

    @contextmanager
    def _seeded(self, seed: int | None) -> Iterator[None]:
        """Random numbers of a forward come from `seed`. A stage that drew none the first time is left alone."""
        if seed is None or self._draws is False:
            yield
            return
        with ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            before = random_state(self._device.torch_device)
            yield
            self._draws = self._draws or not torch.equal(before, random_state(self._device.torch_device))

    @contextmanager
    def _own_code(self, key: Hashable) -> Iterator[None]:
        try:
            with own_code(self._model, f"in stage {self._number + 1} on micro-batch {key}"):
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
        bad = first_bad_parameter(here, " of this stage")
        return f"the loss of micro-batch {key} in stage {self._number + 1} is {loss}. {bad}"


def make_replicas(
    model: nn.Module,
    trace: Trace,
    stages: Sequence[StageModule],
    tables: StageTables,
    number: int,
    count: int,
    num_classes: int,
    rows: RowClient,
    device: Device | None = None,
) -> list[Replica]:
    """`count` replicas of stage `number` of `stages`."""
    is_last = number == len(stages) - 1
    return [
        Replica(model, trace, stages[number], tables, number, is_last, num_classes, rows, device) for _ in range(count)
    ]


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
