"""Messages: their bytes, what is refused and how, and that nonsense costs nothing."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps.wire import BadMagic, BadVersion, Codec, Limits, Malformed, Packed, TooLarge, WireError


class Pull(msgspec.Struct, tag="pull", frozen=True):
    table: str
    sequence: int


class Push(msgspec.Struct, tag="push", frozen=True):
    table: str
    values: Packed
    keys: list[int] = []


CODEC: Codec[Pull | Push] = Codec(Pull | Push)
GOLDEN = bytes.fromhex(
    "48505357 01 00 0200 20000000"  # HPSW, version 1, zero, 2 frames, 32 bytes of header
    "0300000000000000 0800000000000000"  # the frames' bytes
    "83 a474797065 a470756c6c a57461626c65 a4726f7773 a873657175656e6365 07".replace(" ", "")
)
HEADERS = st.one_of(
    st.builds(Pull, st.text(), st.integers(-(2**63), 2**64 - 1)),
    st.builds(
        Push, st.text(), st.builds(Packed, st.tuples(st.integers(0, 9)), st.just("bf16")), st.lists(st.integers(0, 9))
    ),
)
FRAMES = st.lists(st.binary(max_size=50), max_size=5)


@given(HEADERS, FRAMES)
def test_a_message_comes_back_as_it_was(header: Any, frames: list[bytes]) -> None:
    back, views = CODEC.decode(CODEC.encode(header, frames))
    assert back == header
    assert [bytes(view) for view in views] == frames


def test_the_bytes_of_version_1_do_not_change() -> None:
    parts = CODEC.encode(Pull("rows", 7), [b"abc", np.ones(2, np.float32)])
    assert parts[0] == GOLDEN
    assert CODEC.decode([GOLDEN, b"abc", b"12345678"])[0] == Pull("rows", 7)


def test_a_newer_version_is_refused_with_a_sentence() -> None:
    newer = GOLDEN[:4] + b"\x02" + GOLDEN[5:]
    with pytest.raises(BadVersion, match=r"version 2 of the wire format.*run the same release of heterps"):
        CODEC.decode([newer, b"abc", b"12345678"])


def test_a_byte_that_is_kept_for_later_versions_must_be_zero() -> None:
    with pytest.raises(Malformed, match="sixth byte of a prefix is 0 in version 1, not 1"):
        CODEC.decode([GOLDEN[:5] + b"\x01" + GOLDEN[6:], b"abc", b"12345678"])


def test_frames_are_not_copied_either_way() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    parts = CODEC.encode(Pull("t", 0), [array])
    assert parts[1] is array
    (view,) = CODEC.decode(parts)[1]
    assert np.shares_memory(np.frombuffer(view, np.float32), array)


def test_a_frame_that_is_not_contiguous_is_refused_with_the_fix() -> None:
    with pytest.raises(ValueError, match="ascontiguousarray"):
        CODEC.encode(Pull("t", 0), [np.zeros((4, 4))[:, 1]])


@given(st.lists(st.binary(max_size=100), max_size=4))
def test_random_bytes_are_a_wire_error(parts: list[bytes]) -> None:
    with pytest.raises(WireError):
        CODEC.decode(parts)


@given(st.binary(max_size=200), st.integers(0, 2), st.binary(max_size=60))
def test_random_bytes_behind_a_good_prefix_are_a_wire_error_or_a_header(
    sizes: bytes, num_frames: int, header: bytes
) -> None:
    first = struct.pack("<4sBBHI", b"HPSW", 1, 0, num_frames, len(header)) + bytes(8 * num_frames) + header
    try:
        found, _ = CODEC.decode([first, *[b""] * num_frames])
    except WireError:
        return
    assert isinstance(found, Pull | Push)


@given(HEADERS, FRAMES, st.data())
def test_a_message_that_was_cut_anywhere_is_a_wire_error(header: Any, frames: list[bytes], data: st.DataObject) -> None:
    parts = [bytes(memoryview(part)) for part in CODEC.encode(header, frames)]  # type: ignore[arg-type]
    number = data.draw(st.integers(0, len(parts) - 1))
    if data.draw(st.booleans()) or not parts[number]:
        del parts[number]
    else:
        parts[number] = parts[number][: data.draw(st.integers(0, len(parts[number]) - 1))]
    with pytest.raises(WireError):
        CODEC.decode(parts)


@given(HEADERS, FRAMES, st.data())
def test_a_flipped_bit_is_a_wire_error_or_another_message_of_the_same_form(
    header: Any, frames: list[bytes], data: st.DataObject
) -> None:
    parts = [bytearray(memoryview(part)) for part in CODEC.encode(header, frames)]  # type: ignore[arg-type]
    bit = data.draw(st.integers(0, 8 * len(parts[0]) - 1))
    parts[0][bit // 8] ^= 1 << (bit % 8)
    try:
        found, views = CODEC.decode(parts)  # type: ignore[arg-type]
    except WireError:
        return
    assert isinstance(found, Pull | Push)
    assert [bytes(view) for view in views] == frames


@pytest.mark.parametrize(
    ("codec", "frames", "what"),
    [
        (Codec(Pull, Limits(header_bytes=20)), [], "header bytes"),
        (Codec(Pull, Limits(frames=1)), [b"", b""], "frames"),
        (Codec(Pull, Limits(message_bytes=100)), [bytes(100)], "bytes in all"),
    ],
)
def test_what_exceeds_a_limit_is_refused_by_sender_and_receiver(codec: Any, frames: Any, what: str) -> None:
    with pytest.raises(TooLarge, match=what):
        codec.encode(Pull("a table", 1), frames)
    with pytest.raises(TooLarge, match=what):
        codec.decode(CODEC.encode(Pull("a table", 1), frames))


HEADER_BYTES = len(GOLDEN) - 12 - 2 * 8
MESSAGE_BYTES = len(GOLDEN) + 3 + 8


@pytest.mark.parametrize(
    ("limit", "size", "what"),
    [
        ("header_bytes", HEADER_BYTES, f"{HEADER_BYTES} header bytes"),
        ("frames", 2, "2 frames"),
        ("message_bytes", MESSAGE_BYTES, f"{MESSAGE_BYTES} bytes in all"),
    ],
)
def test_a_message_exactly_at_a_limit_passes_and_one_more_does_not(limit: str, size: int, what: str) -> None:
    header, frames = Pull("rows", 7), [b"abc", b"12345678"]
    at_limit: Codec[Pull] = Codec(Pull, Limits(**{limit: size}))
    below: Codec[Pull] = Codec(Pull, Limits(**{limit: size - 1}))
    parts = at_limit.encode(header, frames)
    assert at_limit.decode(parts)[0] == header
    for refused in (lambda: below.encode(header, frames), lambda: below.decode(parts)):
        with pytest.raises(TooLarge, match=what):
            refused()


@pytest.mark.parametrize("lengths", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"])
def test_lengths_that_lie_take_no_memory(lengths: bytes) -> None:
    header = b"\x83\xa4type\xa4push\xa5table\xa1t\xa4keys" + lengths
    first = struct.pack("<4sBBHI", b"HPSW", 1, 0, 0, len(header)) + header
    huge = struct.pack("<4sBBHIQ", b"HPSW", 1, 0, 1, 0, 2**63)
    tracemalloc.start()
    try:
        for parts in ([first], [huge, b""], [huge]):
            with pytest.raises(WireError):
                CODEC.decode(parts)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_header_nested_without_end_is_refused() -> None:
    header = b"\x81\xa4type" + b"\x91" * 60_000
    with pytest.raises(Malformed):
        CODEC.decode([struct.pack("<4sBBHI", b"HPSW", 1, 0, 0, len(header)) + header])


@pytest.mark.parametrize("first", [b"", b"GET / HTTP/1.1\r\n", b"hpsw"])
def test_another_protocol_is_recognised(first: bytes) -> None:
    with pytest.raises(BadMagic, match="is the peer heterps"):
        CODEC.decode([first])


@pytest.mark.parametrize("limits", [{"frames": 2**16}, {"header_bytes": 2**32}])
def test_limits_beyond_the_format_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="no room"):
        Limits(**limits)
    (name, too_many), *_ = limits.items()
    assert getattr(Limits(**{name: too_many - 1}), name) == too_many - 1
