"""The graph of a model for serving: rows go in, not ids, and predictions come out.

    dense [B, D] -------------------------------------------------+
    SparseEmbedding call:  rows [B, slots, dim], pooled ----------+--> the model --> predictions, by column
    SparseSequence call:   rows [B, places, dim], mask [B, places]-+

[1] The model runs once on a made-up batch, with embeddings that record which slots they were called with and return
    random rows: so it is known which inputs the graph has.
[2] torch.export records the graph for any batch size. Each embedding returns the input that belongs to its call.

The model's parameters and buffers keep their names in the graph, behind `model.`, so that increments can replace them.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from heterps.data.batch import Slots
from heterps.errors import ConfigError, HeterpsError, ModelError
from heterps.nn import SparseSequence, embeddings

PREFIX = "model."
EXAMPLE_SAMPLES = 3
Format = Literal["torch", "onnx"]

Forward = Callable[[nn.Module, Tensor, Slots], Mapping[str, Tensor]]
"""What is exported of a model: its outputs, by the name of a column, for dense columns and slots."""


class GraphFiles(NamedTuple):
    """The files of a graph by name, the first of which is opened, and the model's weights that can be replaced."""

    files: dict[str, bytes]
    weights: list[str]


class EmbeddingCall(NamedTuple):
    """One use of an embedding in the graph: which one, and which slots it looks up."""

    embedding: str
    slots: tuple[str, ...]


@dataclass(frozen=True)
class Graph:
    """An exported graph, and what its inputs and outputs are. The first input is the dense columns."""

    program: torch.export.ExportedProgram
    calls: tuple[EmbeddingCall, ...]
    outputs: dict[str, int | None]  # by column: how many values a sample has; None: one number
    uses_dense: bool

    def files(self, name: str, format: Format) -> GraphFiles:
        """Return its files: `name`.pt2, or `name`.onnx and its weights."""
        return _torch_files(self.program, name) if format == "torch" else _onnx_files(self, name)


class NamedSlots(Slots):
    """Slots of which only the names are known: all that a model may do with them is to give them to embeddings."""

    sources: dict[str, str]

    def __init__(self, names: Iterable[str], sources: Mapping[str, str] | None = None) -> None:
        object.__setattr__(self, "names", tuple(names))
        object.__setattr__(self, "sources", dict(sources or {}))  # the slot that each copy has its ids from

    def select(self, names: Sequence[str]) -> NamedSlots:
        return NamedSlots(names, self.sources)

    def with_copies(self, copies: Mapping[str, str]) -> NamedSlots:
        known = self.sources
        return NamedSlots(
            dict.fromkeys((*self.names, *copies)), {**known, **{n: known.get(s, s) for n, s in copies.items()}}
        )

    def __len__(self) -> int:
        raise _needs_ids("the number of samples: take it from a tensor, as in dense.shape[0]")

    def __getattr__(self, name: str) -> Any:
        raise _needs_ids(f"slots.{name}")

    @property
    def offsets(self) -> Any:
        raise _needs_ids("slots.offsets")


@dataclass
class EmbeddingOutputs:
    """What embeddings return while a model is recorded."""

    calls: dict[EmbeddingCall, tuple[Tensor, ...]] = field(default_factory=dict)
    is_open: bool = True  # a call that is not known yet gets random rows

    def attach(self, model: nn.Module) -> None:
        """Let the embeddings of a model return what is in this feed."""
        for name, module in embeddings(model):
            module.forward = self._forward(name, module)  # type: ignore[method-assign, assignment]

    def _forward(self, name: str, module: Any) -> Callable[[Any], Any]:
        def forward(slots: Any) -> Any:
            if not isinstance(slots, NamedSlots):
                raise _needs_ids(f"ids that it makes itself and gives to the embedding {name}")
            sources: Mapping[str, str] = slots.sources
            missing = [slot for slot in module.slots if slot not in slots.names]
            if missing:
                raise ModelError(f"the embedding {name} looks up {', '.join(missing)}, which its batch does not have.")
            call = EmbeddingCall(name, tuple(sources.get(slot, slot) for slot in module.slots))
            if self.is_open and call not in self.calls:
                self.calls[call] = _random_rows(module)
            found = self.calls[call]
            return found if len(found) > 1 else found[0]

        return forward


class RecordedModel(nn.Module):
    """A model whose inputs are dense columns and rows."""

    def __init__(self, model: nn.Module, slots: Sequence[str], forward: Forward, feed: EmbeddingOutputs) -> None:
        super().__init__()
        self.model = model
        self._slots, self._forward_of, self._feed = tuple(slots), forward, feed
        self._widths = {call: len(inputs) for call, inputs in feed.calls.items()}

    def forward(self, dense: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
        at = 0
        for call, width in self._widths.items():
            self._feed.calls[call] = rows[at : at + width]
            at += width
        return tuple(self._forward_of(self.model, dense, NamedSlots(self._slots)).values())


def record(model: nn.Module, num_dense: int, slots: Sequence[str], forward: Forward) -> Graph:
    """Record the graph of a model that has no tables; its embeddings cannot be used otherwise afterwards."""
    model.eval()
    feed = EmbeddingOutputs()
    feed.attach(model)
    dense = torch.rand(EXAMPLE_SAMPLES, num_dense)
    with _explained(model), torch.no_grad(), quiet():
        found = forward(model, dense, NamedSlots(slots))  # [1]
        outputs = {name: None if value.ndim == 1 else value.shape[1] for name, value in found.items()}
        example = (dense, *(tensor for inputs in feed.calls.values() for tensor in inputs))
        calls = tuple(feed.calls)
        feed.is_open = False
        batch = torch.export.Dim("batch", min=1)
        any_size = {0: batch}
        shapes = (any_size, (any_size,) * (len(example) - 1)) if len(example) > 1 else (any_size,)
        module = RecordedModel(model, slots, forward, feed)
        program = torch.export.export(module, example, dynamic_shapes=shapes, strict=False)  # [2]
    dense_name = program.graph_signature.user_inputs[0]
    node = next(node for node in program.graph.nodes if node.name == dense_name)
    return Graph(program, calls, outputs, bool(node.users))


def _torch_files(program: torch.export.ExportedProgram, name: str) -> GraphFiles:
    file = io.BytesIO()
    with quiet():
        torch.export.save(program, file)
    return GraphFiles({f"{name}.pt2": file.getvalue()}, [key.removeprefix(PREFIX) for key in program.state_dict])


def _onnx_files(graph: Graph, name: str) -> GraphFiles:
    """Convert a graph to ONNX. All weights are external, since onnxruntime replaces no others by name."""
    try:
        import onnx
        import onnxscript  # noqa: F401 torch's exporter needs it
        from onnx.external_data_helper import set_external_data
    except ImportError as error:
        raise ConfigError(f"--format onnx needs {error.name}: pip install 'heterps[onnx]'.") from None
    inputs = [f"input_{i}" for i in range(len(graph.program.graph_signature.user_inputs))]
    with _explained(graph.program), quiet():
        converted: Any = torch.onnx.export(
            graph.program,
            dynamo=True,
            verbose=False,
            optimize=False,  # it would fold weights into others, which could then not be replaced
            input_names=inputs,
            output_names=list(graph.outputs),
        )
    model, data = converted.model_proto, bytearray()
    mine = [tensor for tensor in model.graph.initializer if tensor.name.startswith(PREFIX)]
    for tensor in mine:
        content = onnx.numpy_helper.to_array(tensor).tobytes()
        set_external_data(tensor, f"{name}.onnx.data", offset=len(data), length=len(content))
        tensor.raw_data = content  # a tensor that is external must have had some
        tensor.ClearField("raw_data")
        data += content
    files = {f"{name}.onnx": model.SerializeToString(), f"{name}.onnx.data": bytes(data)}
    return GraphFiles(files, [tensor.name.removeprefix(PREFIX) for tensor in mine])


def _random_rows(module: Any) -> tuple[Tensor, ...]:
    if isinstance(module, SparseSequence):
        mask = torch.arange(module.max_length) >= torch.arange(EXAMPLE_SAMPLES)[:, None]
        return torch.rand(EXAMPLE_SAMPLES, module.max_length, module.dim) * mask[:, :, None], mask
    return (torch.rand(EXAMPLE_SAMPLES, len(module.slots), module.dim),)


@contextmanager
def _explained(model: object) -> Iterator[None]:
    """Say of an error that the model cannot be exported, and why."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, HeterpsError):
            cause = cause.__cause__ or cause.__context__
        if cause is not None:
            raise cause from None
        text = str(error).strip()
        why = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
        if "Constraints violated" in text or "specialized" in text:
            why = (
                "its graph depends on the number of samples in a batch. Take it from a tensor (x.shape[0], not "
                "len(x)), and do not branch on it"
            )
        elif not isinstance(model, nn.Module):
            root: BaseException = error
            while root.__cause__ is not None:
                root = root.__cause__
            lines = [line for line in str(root).splitlines() if line.strip()]
            why = f"an operation of it has no form in ONNX ({lines[0] if lines else type(root).__name__})"
        name = type(model).__name__ if isinstance(model, nn.Module) else "the model"
        raise ModelError(f"{name} cannot be exported: {why.strip().rstrip('.')}.") from error


def _needs_ids(what: str) -> ModelError:
    return ModelError(
        f"the model cannot be exported, since it uses {what}. In an export a model gets rows, not ids: give the slots "
        "to embeddings as they are, and compute with what these return."
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what torch's exporters warn and log, which is about their own progress, from the user."""
    loggers = [logging.getLogger(name) for name in ("torch", "torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
