"""The codec of stage borders: the live values of a micro-batch, or their gradients, as a part of a message.

    values (name of a node: tree)                                 the same trees, the receiver's own
      |                                                                ^
     [1] pack: describe every tree in a BorderValues,                 [4] unpack: copy the frames into new tensors
      |  tensors and keys aside as frames                              |
      +--> BorderValues (into the header), frames ~~ wire.Codec ~~>   [2] walk them: which frames, of how many bytes
                                                                  [3] compare with what came, and with the limits

A tree is made of tensors, Slots, None, bool, int, float, str, torch.Size, tuples, the named tuples that functions of
torch return, lists, and dicts with string keys. A tensor keeps its dtype, its shape, the order of its dimensions in
memory (kernels may round otherwise in another), and whether it requires a gradient; a view with gaps arrives without
them. Every bit arrives, except where a coding of 16 bits is asked for. Gradients are trees with None where there is
none.

Packing does not copy what lies contiguous in this machine's memory. Unpacking always copies: what a channel hands out
may be shared memory that cannot be written, memory of the sender (a MemoryNetwork), or not aligned, and a view cannot
tell; layers may write in place, and a block of shared memory is free again as soon as its message was unpacked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heterps.data.batch import Slots
from heterps.errors import ModelError
from heterps.lookups import PreparedSlots
from heterps.wire import Frame, Limits, Malformed, TooLarge, halves
from heterps.wire.arrays import WIDTHS, Dtype, narrow

MAX_DEPTH = 32
"""Trees nested deeper than this are a mistake, or an attack on the receiver's stack."""
DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
    "bool": torch.bool,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "uint16": torch.uint16,
    "uint32": torch.uint32,
    "uint64": torch.uint64,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
BRANCHES: dict[str, type] = {"tuple": tuple, "list": list, "torch.Size": torch.Size}
BRANCHES |= {
    f"torch.{name}": kind for name, kind in vars(torch.return_types).items() if hasattr(kind, "n_sequence_fields")
}
KINDS = {kind: name for name, kind in BRANCHES.items()}
ADVICE = "Keep the layers that make and use it in one stage, or let them pass tensors on."

Size = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
Sizes = Annotated[tuple[Size, ...], msgspec.Meta(max_length=64)]


class TensorInfo(msgspec.Struct, frozen=True, array_like=True, tag="tensor"):
    """A tensor, whose values are a frame, in the order of memory."""

    shape: Sizes
    dtype: str
    requires_grad: bool
    order: Sizes = ()
    """Its dimensions from the outermost in memory to the innermost; empty: as they are."""
    coding: Dtype = "fp32"
    """What float32 travels as."""


class SlotsInfo(msgspec.Struct, frozen=True, array_like=True, tag="slots"):
    """Slots, whose keys are a frame, and their offsets another."""

    names: tuple[str, ...]
    num_keys: Size
    num_offsets: Size | None


class Branch(msgspec.Struct, frozen=True, array_like=True, tag="branch"):
    """A tuple, a list, or one of the other BRANCHES."""

    kind: str
    items: tuple[Node, ...]


class NamedBranch(msgspec.Struct, frozen=True, array_like=True, tag="named"):
    """A dict of trees, by key."""

    items: dict[str, Node]


Node: TypeAlias = bool | int | float | str | TensorInfo | SlotsInfo | Branch | NamedBranch | None


class BorderValues(msgspec.Struct, frozen=True, array_like=True):
    """Trees by the name of their node, and in their order the frames that go with them."""

    values: dict[str, Node]


def pack(values: Mapping[str, Any], *, coding: Dtype = "fp32") -> tuple[BorderValues, list[Frame]]:
    """`values` as a part of a header and the frames that go with it. [1]

    Frames may be the memory of the tensors: do not write into it before the message is gone. `coding` rounds tensors of
    float32, and no others, to 16 bits on the way. ModelError names the node of what cannot cross.
    """
    frames: list[Frame] = []
    described = {name: _describe(value, name, coding, frames, MAX_DEPTH) for name, value in values.items()}
    return BorderValues(described), frames


def unpack(border: BorderValues, frames: Sequence[memoryview], limits: Limits = Limits()) -> dict[str, Any]:
    """The values that were packed, in memory of their own on the host; tensors are leaves.

    Malformed or TooLarge, before any memory is taken, where border, frames and limits do not fit.
    """
    parts = [part for name, node in border.values.items() for part in _parts(node, name, MAX_DEPTH)]  # [2]
    _check(parts, frames, limits)  # [3]
    rest = iter(frames)
    return {name: _build(node, rest) for name, node in border.values.items()}  # [4]


# --- [1] -------------------------------------------------------------------------------------------------------------


def _describe(value: Any, where: str, coding: Dtype, frames: list[Frame], depth: int) -> Node:
    if depth == 0:
        raise ModelError(f"{where}: a value nested more than {MAX_DEPTH} deep cannot cross a stage border. {ADVICE}")
    if isinstance(value, Tensor):
        return _describe_tensor(value, where, coding, frames)
    kind = type(value)
    if kind is int and not -(2**63) <= value < 2**64:
        raise ModelError(f"{where}: {value} cannot cross a stage border, for it has more than 64 bits. {ADVICE}")
    if value is None or kind in (bool, int, float, str):
        leaf: Node = value
        return leaf
    if kind in (Slots, PreparedSlots):  # without its lookups
        return _describe_slots(value, frames)
    if kind in KINDS:
        items = enumerate(value)
        return Branch(KINDS[kind], tuple(_describe(v, f"{where}[{i}]", coding, frames, depth - 1) for i, v in items))
    if kind is dict and all(type(key) is str for key in value):
        return NamedBranch({k: _describe(v, f"{where}[{k!r}]", coding, frames, depth - 1) for k, v in value.items()})
    raise _cannot_cross(where, "dict with keys other than strings" if kind is dict else kind.__qualname__)


def _describe_tensor(tensor: Tensor, where: str, coding: Dtype, frames: list[Frame]) -> TensorInfo:
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout != torch.strided or tensor.is_meta:
        raise _cannot_cross(where, f"{type(tensor).__qualname__} ({tensor.layout}, on {tensor.device})")
    if tensor.dtype not in NAMES or tensor.dim() > 64:
        raise _cannot_cross(where, f"tensor of {tensor.dtype} with {tensor.dim()} dimensions")
    data = tensor.detach().to("cpu").resolve_neg()
    if isinstance(tensor if tensor._base is None else tensor._base, nn.Parameter):
        data = data.clone()  # the next update would write into what may be still on its way
    order = _order(data)
    flat = (data.permute(order) if order else data.contiguous()).reshape(-1)
    if tensor.dtype != torch.float32:
        coding = "fp32"
    known = flat.view(torch.uint16) if tensor.dtype == torch.bfloat16 else flat  # to NumPy
    frames.append(known.numpy() if coding == "fp32" else narrow(known.numpy(), coding))
    return TensorInfo(tuple(tensor.shape), NAMES[tensor.dtype], tensor.requires_grad, order, coding)


def _order(tensor: Tensor) -> tuple[int, ...]:
    """The dimensions from the outermost in memory on; empty where that is their order, or where there are gaps."""
    if tensor.is_contiguous():
        return ()
    strides = tensor.stride()
    order = tuple(sorted(range(tensor.dim()), key=lambda dimension: -strides[dimension]))
    return order if tensor.permute(order).is_contiguous() else ()


def _describe_slots(slots: Slots, frames: list[Frame]) -> SlotsInfo:
    frames.append(np.ascontiguousarray(slots.keys, np.uint64))
    if slots.offsets is not None:
        frames.append(np.ascontiguousarray(slots.offsets, np.int64))
    return SlotsInfo(slots.names, len(slots.keys), None if slots.offsets is None else len(slots.offsets))


def _cannot_cross(where: str, what: str) -> ModelError:
    return ModelError(
        f"{where}: a {what} cannot cross a stage border, as tensors of numbers, Slots, None, bool, int, float, str, "
        f"torch.Size, and tuples, lists and dicts of them can. {ADVICE}"
    )


# --- [2] [3] ---------------------------------------------------------------------------------------------------------


class _FrameSpec(NamedTuple):
    """What one frame holds, and the bytes that it must have."""

    what: str
    frame_bytes: int
    memory_bytes: int
    """The bytes it takes here: more than the frame where that is coded; of an empty tensor, by its other sides."""


def _parts(node: Node, where: str, depth: int) -> Iterator[_FrameSpec]:
    """The frames of a tree, in their order. Malformed where a tree contradicts itself."""
    if depth == 0:
        raise Malformed(f"{where} is nested more than {MAX_DEPTH} deep")
    if isinstance(node, TensorInfo):
        yield _tensor_part(node, where)
    elif isinstance(node, SlotsInfo):
        yield _FrameSpec(f"the keys of {where}", node.num_keys * 8, node.num_keys * 8)
        if node.num_offsets is not None:
            yield _FrameSpec(f"the offsets of {where}", node.num_offsets * 8, node.num_offsets * 8)
    elif isinstance(node, NamedBranch):
        for key, item in node.items.items():
            yield from _parts(item, f"{where}[{key!r}]", depth - 1)
    elif isinstance(node, Branch):
        _check_branch(node, where)
        for place, item in enumerate(node.items):
            yield from _parts(item, f"{where}[{place}]", depth - 1)


def _check_branch(branch: Branch, where: str) -> None:
    kind = BRANCHES.get(branch.kind)
    if kind is None:
        raise Malformed(f"{where} is a {branch.kind}, and nothing of that name crosses a border")
    if kind is torch.Size and not all(type(item) is int and -(2**63) <= item < 2**63 for item in branch.items):
        raise Malformed(f"{where} is a torch.Size of something other than integers")
    if (num_items := getattr(kind, "n_sequence_fields", None)) not in (None, len(branch.items)):
        raise Malformed(f"{where} is a {branch.kind} of {len(branch.items)} items instead of {num_items}")


def _tensor_part(info: TensorInfo, where: str) -> _FrameSpec:
    what = f"{where}, a {info.dtype} tensor of shape {list(info.shape)}"
    if info.dtype not in DTYPES or (info.coding != "fp32" and info.dtype != "float32"):
        raise Malformed(f"{what} in {info.coding}: there is none such")
    dtype = DTYPES[info.dtype]
    if info.requires_grad and not dtype.is_floating_point:
        raise Malformed(f"{what}, requires a gradient, as only floating-point numbers can")
    if info.order and sorted(info.order) != list(range(len(info.shape))):
        raise Malformed(f"{what}, has its dimensions in the order {list(info.order)} in memory, which is none")
    width = WIDTHS[info.coding] if info.dtype == "float32" else dtype.itemsize
    sides = math.prod(max(side, 1) for side in info.shape)  # torch counts sides of 0 x 2**61 too
    return _FrameSpec(what, math.prod(info.shape) * width, sides * dtype.itemsize)


def _check(parts: Sequence[_FrameSpec], frames: Sequence[memoryview], limits: Limits) -> None:
    if len(parts) > limits.frames:
        raise TooLarge(f"a border of {len(parts)} frames exceeds the limit of {limits.frames}")
    if (memory_bytes := sum(part.memory_bytes for part in parts)) > limits.message_bytes:
        raise TooLarge(f"values of {memory_bytes} bytes exceed the limit of {limits.message_bytes}")
    if len(parts) != len(frames):
        raise Malformed(f"a border of {len(parts)} frames came with {len(frames)}")
    for part, frame in zip(parts, frames, strict=True):
        if part.frame_bytes != frame.nbytes:
            raise Malformed(f"{part.what}, should take {part.frame_bytes} bytes, not {frame.nbytes}")


# --- [4] -------------------------------------------------------------------------------------------------------------


def _build(node: Node, frames: Iterator[memoryview]) -> Any:
    if isinstance(node, TensorInfo):
        return _build_tensor(node, next(frames))
    if isinstance(node, SlotsInfo):
        return _build_slots(node, frames)
    if isinstance(node, NamedBranch):
        return {key: _build(item, frames) for key, item in node.items.items()}
    if isinstance(node, Branch):
        return BRANCHES[node.kind]([_build(item, frames) for item in node.items])
    return node


def _build_tensor(info: TensorInfo, frame: memoryview) -> Tensor:
    # Memory of torch: it is aligned as kernels like it, and some round otherwise on other memory.
    flat = torch.empty(math.prod(info.shape), dtype=DTYPES[info.dtype])
    if info.coding == "fp32":
        flat.view(torch.uint8).numpy()[:] = np.frombuffer(frame, np.uint8)
    else:
        widen = halves.from_fp16 if info.coding == "fp16" else halves.from_bf16
        widen(np.frombuffer(frame, np.uint16), flat.numpy())
    if info.dtype == "bool" and bool((flat.view(torch.uint8) > 1).any()):
        raise Malformed("a frame of truth values has bytes other than 0 and 1")
    if not info.order:
        return flat.reshape(info.shape).requires_grad_(info.requires_grad)
    inverse = [info.order.index(d) for d in range(len(info.order))]
    return flat.reshape([info.shape[d] for d in info.order]).permute(inverse).requires_grad_(info.requires_grad)


def _build_slots(info: SlotsInfo, frames: Iterator[memoryview]) -> Slots:
    """Malformed where the bags of keys are not whole samples: kernels rely on offsets and do not check them."""
    keys = _copied(next(frames), np.uint64)
    width = max(len(info.names), 1)
    if info.num_offsets is None:
        if len(keys) % width:
            raise Malformed(f"{len(keys)} keys are not whole samples of {width} slots")
        return Slots(info.names, keys)
    offsets = _copied(next(frames), np.int64)
    if not len(offsets) or (len(offsets) - 1) % width:
        raise Malformed(f"{len(offsets)} offsets are not one more than those of whole samples of {width} slots")
    if offsets[0] != 0 or offsets[-1] != len(keys) or (offsets[1:] < offsets[:-1]).any():
        raise Malformed(f"offsets do not rise from 0 to the {len(keys)} keys there are")
    return Slots(info.names, keys, offsets)


def _copied(frame: memoryview, dtype: type[np.generic]) -> NDArray[Any]:
    return np.frombuffer(frame, dtype).copy()
