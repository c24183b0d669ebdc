"""The source of a profiled model and its batch, from which another process can build the same two again.

--inputs 16,3x32x32          float inputs of these shapes per sample
the job's training data      its first batch
model.example_inputs(n)      the model's own example of n samples, for a synthetic batch
a random batch               of the job's columns, if the model has no example
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from heterps.config import Job
from heterps.data.reader import open_reader
from heterps.errors import ConfigError, ModelError
from heterps.model.build import build_model
from heterps.profiling.batches import model_inputs, random_batch

Inputs = tuple[Any, ...]


@dataclass(frozen=True)
class ModelSource:
    """The job's model with its inputs: random ones of the shapes `inputs`, `synthetic` ones, or the job's data."""

    job: Job
    synthetic: bool = False
    inputs: str | None = None

    def build(self) -> tuple[nn.Module, Inputs]:
        """Build the model and the arguments of its forward. Equal sources give equal results in any process."""
        model = build_model(self.job.model, self.job.data.columns, self.job.seed)
        return model, self._inputs(model)

    @property
    def reads_data(self) -> bool:
        return not self.synthetic and self.inputs is None

    def to_json(self) -> str:
        return json.dumps({"job": self.job.model_dump(mode="json"), "synthetic": self.synthetic, "inputs": self.inputs})

    @classmethod
    def from_json(cls, text: str) -> ModelSource:
        fields = json.loads(text)
        return cls(Job.model_validate(fields["job"]), fields["synthetic"], fields["inputs"])

    def _inputs(self, model: nn.Module) -> Inputs:
        data = self.job.data
        if self.inputs is not None:
            return shaped_inputs(self.inputs, data.batch_size, self.job.seed)
        if not self.synthetic:
            batch, _ = next(open_reader(self.job).read())
            return model_inputs(batch)
        if (example := getattr(model, "example_inputs", None)) is not None:
            return _examples(self.job.model.factory, example, data.batch_size)
        return model_inputs(random_batch(data.columns, data.batch_size, self.job.seed))


def shaped_inputs(shapes: str, batch_size: int, seed: int = 0) -> Inputs:
    """Make inputs of normal numbers: `16,3x32x32` gives two, [batch_size, 16] and [batch_size, 3, 32, 32]."""
    generator = torch.Generator().manual_seed(seed)
    inputs = []
    for shape in shapes.split(","):
        words = shape.strip().split("x")
        if not all(word.isdecimal() and int(word) > 0 for word in words):
            raise ConfigError(
                f"--inputs {shapes}: {shape.strip()!r} is not a shape. Write the sizes of one sample of each input, "
                "without the batch: 16 for [batch, 16], 3x32x32 for [batch, 3, 32, 32], and a comma between inputs. A "
                "model that takes other inputs says so itself: example_inputs(batch_size), a method of the module."
            )
        inputs.append(torch.randn(batch_size, *map(int, words), generator=generator))
    return tuple(inputs)


def _examples(factory: str, example: Callable[[int], Any], batch_size: int) -> Inputs:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        try:
            inputs = example(batch_size)
        except Exception as error:  # the user's own code
            raise ModelError(
                f"model {factory}: example_inputs({batch_size}) raised {type(error).__name__}: {error}. "
                "It is called with a batch size and returns the inputs of forward."
            ) from error
    if not isinstance(inputs, (tuple, list)):
        raise ModelError(
            f"model {factory}: example_inputs({batch_size}) returned {type(inputs).__name__}; it returns a tuple with "
            "one input for each required argument of forward: `return (x,)`."
        )
    return tuple(inputs)
