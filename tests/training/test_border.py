"""Values arrive at the other side of a border as they left, bit for bit, and nonsense takes no memory."""

from __future__ import annotations

import contextlib
import copy
import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from zoo_cases import small_inputs, small_model

from heterps.data.batch import Slots
from heterps.errors import ModelError
from heterps.lookups import prepared
from heterps.model.stages import StageModule, StageRun, leaves, split
from heterps.model.trace import Trace, trace
from heterps.model.zoo import ZOO
from heterps.nn import SparseEmbedding, embeddings
from heterps.training.protocol.border import (
    DTYPES,
    MAX_DEPTH,
    BorderValues,
    Branch,
    NamedBranch,
    SlotsInfo,
    TensorInfo,
    pack,
    unpack,
)
from heterps.wire import Codec, Limits, Malformed, TooLarge, WireError
from heterps.wire.message import contiguous


class Header(msgspec.Struct, frozen=True, tag="header"):
    batch: int
    border: BorderValues


CODEC: Codec[Header] = Codec(Header)


def cross(values: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Through a codec, and as frames that nobody may write, as those of shared memory are."""
    border, frames = pack(values, **options)
    parts = CODEC.encode(Header(7, border), frames)
    header, views = CODEC.decode([contiguous(part).toreadonly() for part in parts])
    assert header.batch == 7
    return unpack(header.border, views)


# --- trees of any kind -----------------------------------------------------------------------------------------------


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any bits in any dtype and shape, contiguous or with its dimensions swapped, or a view with gaps."""
    name = draw(st.sampled_from(sorted(DTYPES)))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    num_bytes = math.prod(shape) * DTYPES[name].itemsize
    data = np.frombuffer(draw(st.binary(min_size=num_bytes, max_size=num_bytes)), np.uint8)
    tensor = torch.empty(shape, dtype=DTYPES[name])
    tensor.reshape(-1).view(torch.uint8).numpy()[:] = data % 2 if name == "bool" else data
    tensor = tensor.permute(draw(st.permutations(range(len(shape)))))
    if shape and draw(st.booleans()):
        tensor = tensor[..., ::2]
    return tensor.requires_grad_(tensor.is_floating_point() and draw(st.booleans()))


@st.composite
def slots(draw: st.DrawFn) -> Slots:
    names = tuple(draw(st.lists(st.text(max_size=3), max_size=3, unique=True)))
    num_bags = draw(st.integers(0, 4)) * len(names)
    if draw(st.booleans()):
        return Slots(names, np.array(draw(st.lists(KEYS, min_size=num_bags, max_size=num_bags)), np.uint64))
    lengths = draw(st.lists(st.integers(0, 3), min_size=num_bags, max_size=num_bags))
    offsets = np.cumsum([0, *lengths], dtype=np.int64)
    keys = draw(st.lists(KEYS, min_size=int(offsets[-1]), max_size=int(offsets[-1])))
    return Slots(names, np.array(keys, np.uint64), offsets)


KEYS = st.integers(0, 2**64 - 1)
PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5)
SIZES = st.lists(st.integers(0, 2**40), max_size=4).map(torch.Size)
TREES = st.recursive(
    PLAIN | SIZES | tensors() | slots(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(st.text(), inner)
    ),
    max_leaves=8,
)


def assert_same_tree(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, Tensor):
        assert (a.dtype, a.shape, a.requires_grad) == (b.dtype, b.shape, b.requires_grad)
        assert b.is_leaf
        assert bits(a) == bits(b)
    elif isinstance(a, Slots):
        assert a.names == b.names
        assert (a.offsets is None) == (b.offsets is None)
        np.testing.assert_array_equal(a.keys, b.keys, strict=True)
        if a.offsets is not None:
            np.testing.assert_array_equal(a.offsets, b.offsets, strict=True)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same_tree(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same_tree(x, y)
    else:
        assert a == b or (a != a and b != b)


def bits(tensor: Tensor) -> bytes:
    return bytes(tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy())


@given(st.dictionaries(st.text(max_size=4), TREES, max_size=4))
def test_any_tree_arrives_bit_for_bit(values: dict[str, Any]) -> None:
    assert_same_tree(values, cross(values))


def test_what_torch_functions_return_keeps_its_names() -> None:
    values = {"max": torch.tensor([[1.0, 3.0], [5.0, 4.0]]).max(1), "gradient": torch.return_types.max((None, None))}
    arrived = cross(values)
    assert_same_tree(values, arrived)
    assert arrived["max"].indices.tolist() == [1, 0]


def test_numbers_keep_their_type_up_to_64_bits() -> None:
    arrived = cross({"a": (1, 1.0, True, -(2**63), 2**64 - 1)})["a"]
    assert [type(value) for value in arrived] == [int, float, bool, int, int]


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [lambda x: x, lambda x: x.t(), lambda x: x[1:], lambda x: x.view(torch.bfloat16)])
def test_packing_does_not_copy_what_lies_next_to_each_other(layout: Any) -> None:
    tensor = layout(torch.arange(12.0).reshape(3, 4))
    _, frames = pack({"x": tensor})
    assert isinstance(frames[0], np.ndarray)
    assert frames[0].__array_interface__["data"][0] == tensor.data_ptr()
    assert frames[0].nbytes == tensor.nbytes


def test_the_order_of_dimensions_in_memory_arrives_and_gaps_do_not() -> None:
    images = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    arrived = cross({"images": images, "gaps": torch.rand(4, 6)[:, ::2], "expanded": torch.rand(1).expand(3, 4)})
    assert arrived["images"].stride() == images.stride()
    assert arrived["gaps"].is_contiguous()
    assert arrived["expanded"].stride() == (4, 1)


def test_what_arrived_can_be_written_and_leaves_the_frames_and_the_sender_alone() -> None:
    sent = {"x": torch.ones(3), "s": Slots(("a",), np.ones(3, np.uint64), np.arange(4))}
    border, frames = pack(sent)
    arrived = unpack(border, [contiguous(frame) for frame in frames])
    arrived["x"].mul_(2)
    arrived["s"].keys[:] = 5
    arrived["s"].offsets[:] = 5
    assert sent["x"].tolist() == [1, 1, 1]
    assert sent["s"].keys.tolist() == [1, 1, 1]
    assert arrived["x"].data_ptr() % 64 == 0, "memory that torch would not have made itself"


def test_a_parameter_may_be_updated_while_its_message_is_on_its_way() -> None:
    weight = nn.Parameter(torch.ones(2, 3))
    border, frames = pack({"w": weight, "view": weight.t()})
    with torch.no_grad():
        weight.zero_()
    arrived = unpack(border, [contiguous(frame) for frame in frames])
    assert arrived["w"].sum() == arrived["view"].sum() == 6
    assert type(arrived["w"]) is Tensor
    assert arrived["w"].requires_grad


def test_what_was_worked_out_from_slots_stays_behind() -> None:
    slots = prepared(Slots(("a",), np.ones(1, np.uint64)))
    SparseEmbedding(["a"], 2).prepare(slots)
    assert slots.lookups
    assert type(cross({"s": slots})["s"]) is Slots


# --- codings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("coding", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_a_coding_rounds_float32_and_nothing_else(coding: str, dtype: torch.dtype) -> None:
    values = torch.randn(5, 7, generator=torch.manual_seed(0))
    others = {"double": values.double(), "half": values.half(), "int": values.int()}
    sent = {"x": values.clone().requires_grad_(), "t": values.t(), "scalar": values[0, 0], "none": values[:0], **others}
    _, frames = pack(sent, coding=coding)  # type: ignore[arg-type]
    assert contiguous(frames[0]).nbytes == 2 * values.numel()
    arrived = cross(sent, coding=coding)
    torch.testing.assert_close(arrived["x"].detach(), values.to(dtype).float(), rtol=0, atol=0)
    assert torch.equal(arrived["t"], values.to(dtype).float().t())
    assert arrived["x"].requires_grad
    assert arrived["x"].dtype == arrived["scalar"].dtype == torch.float32
    assert (arrived["scalar"].shape, arrived["none"].shape) == ((), (0, 7))
    assert_same_tree(others, {name: arrived[name] for name in others})


# --- what cannot cross -----------------------------------------------------------------------------------------------


def deep(levels: int) -> Any:
    return [deep(levels - 1)] if levels else 1


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (object(), "object"),
        ({1: 2}, "dict with keys other than strings"),
        (OrderedDict(a=1), "OrderedDict"),
        (np.float64(1), "float64"),
        (np.zeros(2), "ndarray"),
        (torch.zeros(2, dtype=torch.complex64), "tensor of torch.complex64"),
        (torch.zeros(2).to_sparse(), "torch.sparse_coo"),
        (torch.zeros(2, device="meta"), "on meta"),
        (2**64, "more than 64 bits"),
        (deep(MAX_DEPTH), "nested more than"),
    ],
)
def test_what_cannot_cross_is_named_with_its_node_and_what_to_do(value: Any, named: str) -> None:
    with pytest.raises(ModelError, match=r"^getitem_3\[1\]\['rest'\].*" + named + ".*in one stage"):
        pack({"fine": 1, "getitem_3": (0, {"rest": value})})


# --- crossings that are none -----------------------------------------------------------------------------------------

FLOATS = TensorInfo((2, 3), "float32", True)
BAGS = SlotsInfo(("a", "b"), 3, 3)
OFFSETS = np.array([0, 1, 3])


@pytest.mark.parametrize(
    ("node", "frames", "match"),
    [
        (FLOATS, [], "1 frames came with 0"),
        (1, [b""], "0 frames came with 1"),
        (FLOATS, [bytes(23)], "24 bytes, not 23"),
        (TensorInfo((2, 3), "float32", True, (), "fp16"), [bytes(24)], "12 bytes, not 24"),
        (TensorInfo((2, 3), "float64", True, (), "fp16"), [bytes(12)], "none such"),
        (TensorInfo((2, 3), "complex64", True), [bytes(48)], "none such"),
        (TensorInfo((2,), "int64", True), [bytes(16)], "as only floating-point"),
        (TensorInfo((2,), "bool", False), [b"\1\2"], "other than 0 and 1"),
        (TensorInfo((2, 3), "float32", True, (0,)), [bytes(24)], "which is none"),
        (TensorInfo((2, 3), "float32", True, (1, 1)), [bytes(24)], "which is none"),
        (Branch("set", (1,)), [], "nothing of that name"),
        (Branch("torch.Size", (1, "a")), [], "other than integers"),
        (Branch("torch.Size", (2**63,)), [], "other than integers"),
        (Branch("torch.max", (1,)), [], "1 items instead of 2"),
        (BAGS, [bytes(24), OFFSETS, b""], "2 frames came with 3"),
        (BAGS, [bytes(16), OFFSETS], "24 bytes, not 16"),
        (BAGS, [bytes(24), OFFSETS + 1], "do not rise from 0"),
        (BAGS, [bytes(24), OFFSETS[[0, 2, 1]]], "do not rise from 0"),
        (SlotsInfo(("a", "b"), 3, 5), [bytes(24), np.array([0, 2, 1, 3, 3], np.int64)], "do not rise from 0"),
        (SlotsInfo(("a", "b"), 3, 5), [bytes(24), np.array([0, 9, 9, 3, 3], np.int64)], "do not rise from 0"),
        (SlotsInfo(("a", "b"), 3, 2), [bytes(24), OFFSETS[:2]], "not one more"),
        (SlotsInfo(("a", "b"), 3, 0), [bytes(24), b""], "not one more"),
        (SlotsInfo(("a", "b"), 3, None), [bytes(24)], "not whole samples"),
    ],
)
def test_a_crossing_that_does_not_fit_its_frames_is_malformed(node: Any, frames: list[Any], match: str) -> None:
    with pytest.raises(Malformed, match=match):
        unpack(BorderValues({"x": NamedBranch({"y": node})}), [contiguous(frame) for frame in frames])


def test_trees_nested_beyond_reason_are_malformed() -> None:
    node: Any = 1
    for _ in range(MAX_DEPTH):
        node = Branch("list", (node,))
    with pytest.raises(Malformed, match="nested more than"):
        unpack(BorderValues({"x": node}), [])


@pytest.mark.parametrize("shape", [(2**61,), (0, 2**61), (2**40, 2**40, 0), (2**13, 2**13)])
def test_sizes_beyond_the_limits_take_no_memory(shape: tuple[int, ...]) -> None:
    with pytest.raises(TooLarge):
        unpack(BorderValues({"x": TensorInfo(shape, "float64", False)}), [memoryview(b"")], Limits(message_bytes=2**20))


def test_tensors_count_together_and_as_wide_as_they_become() -> None:
    halves = TensorInfo((256,), "float32", False, (), "fp16")
    border, frames = BorderValues({"x": halves, "y": halves}), [memoryview(bytes(512))] * 2
    assert len(unpack(border, frames, Limits(message_bytes=2048))) == 2
    with pytest.raises(TooLarge, match="2048 bytes exceed"):
        unpack(border, frames, Limits(message_bytes=2047))
    with pytest.raises(TooLarge, match="2 frames exceeds"):
        unpack(border, frames, Limits(frames=1))


@given(st.binary(max_size=60), st.lists(st.binary(max_size=16), max_size=3))
def test_any_header_is_values_or_a_wire_error(data: bytes, frames: list[bytes]) -> None:
    try:
        border = msgspec.msgpack.decode(b"\x91" + data, type=BorderValues)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    with contextlib.suppress(WireError):
        unpack(border, [memoryview(frame) for frame in frames])


# --- stages ----------------------------------------------------------------------------------------------------------


class Chunks(nn.Module):
    """A tuple of views, a transposed tensor, the maximum with its places, a size and an integer cross borders."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        q = torch.cat(self.a(x).chunk(2, dim=1))
        rows = q.shape[0] // 2
        p = self.b(torch.cat((q[:rows], q[rows:]), 1)).t()
        best = p.max(0)
        return self.c(torch.tanh(p.t())).sum(1) + best.values * best.indices + y


def run_crossed(traced: Trace, stages: list[StageModule], inputs: tuple[object, ...]) -> Any:
    """Forward and backward through all stages, over a border before, between and after them."""
    values = cross(dict(zip(traced.inputs, inputs, strict=True)))
    runs = []
    for stage in stages:
        runs.append(StageRun(stage, values))
        values = cross(runs[-1].outputs)
    output = traced.output(values)
    gradients: dict[str, Any] = {name: torch.ones_like(value) for name, value in values.items()}
    for run in reversed(runs):
        gradients = run.backward(cross(gradients))
    return output


def assert_crossed_equals(model: nn.Module, inputs: tuple[object, ...], rtol: float = 0.0) -> None:
    other = copy.deepcopy(model)
    whole = leaves(model(*inputs))
    torch.autograd.backward(whole, [torch.ones_like(part) for part in whole])
    traced = trace(other)
    output = run_crossed(traced, split(traced, range(1, len(traced.layers))), inputs)
    assert all(map(torch.equal, whole, leaves(output)))
    for (name, a), (_, b) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert a.grad is not None, name
        assert b.grad is not None, name
        torch.testing.assert_close(a.grad, b.grad, rtol=rtol, atol=rtol, msg=f"gradient of {name} differs")
    for (name, e), (_, f) in zip(embeddings(model), embeddings(other), strict=True):
        for use, twin in zip(e._uses.values(), f._uses.values(), strict=True):
            assert use.values.grad is not None
            assert twin.values.grad is not None
            message = f"row gradients of {name} differ"
            torch.testing.assert_close(use.values.grad, twin.values.grad, rtol=rtol, atol=rtol, msg=message)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("name", ZOO)
def test_zoo_models_with_a_border_at_every_layer_equal_the_model(name: str, ragged: bool) -> None:
    torch.manual_seed(2)
    rtol = 1e-5 if name == "mmoe" else 0.0  # its experts and gates use one value: gradients add up in another order
    assert_crossed_equals(small_model(name), small_inputs(name, 7, ragged=ragged), rtol)


def test_trees_at_borders_leave_outputs_and_gradients_as_they_are() -> None:
    torch.manual_seed(4)
    assert_crossed_equals(Chunks(), (torch.randn(5, 8), torch.randn(5)))
