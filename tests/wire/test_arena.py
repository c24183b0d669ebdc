"""Arenas: blocks never overlap, memory comes back, and only what was offered is mapped."""

from __future__ import annotations

import fcntl
import os
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps.wire.arena import Arena, ArenaOffer, Extents, label, open_arena

TOKEN = "0" * 32


@given(st.lists(st.one_of(st.integers(1, 40), st.just(0)), max_size=60), st.randoms(use_true_random=False))
def test_extents_never_overlap_and_all_come_back(sizes: list[int], random: object) -> None:
    """A size takes, 0 gives one back."""
    extents, taken, in_use = Extents(100), [], np.zeros(100, bool)
    for size in sizes:
        if size:
            begin = extents.take(size)
            if begin is None:
                runs = "".join("x" if used else "." for used in in_use)
                assert "." * size not in runs, "there was room"
                continue
            assert not in_use[begin : begin + size].any()
            in_use[begin : begin + size] = True
            taken.append((begin, size))
        elif taken:
            begin, size = taken.pop(random.randrange(len(taken)))  # type: ignore[attr-defined]
            in_use[begin : begin + size] = False
            extents.give_back(begin, size)
    for block in taken:
        extents.give_back(*block)
    assert extents.take(100) == 0


def test_a_reader_sees_what_the_writer_wrote_and_cannot_write() -> None:
    with closing(Arena(4096)) as arena:
        number, begin = arena.take(100, 0.0) or (0, 0)
        arena.write(begin, memoryview(bytes(range(100))))
        memory = open_arena(arena.offer)
        assert bytes(memory[begin : begin + 100]) == bytes(range(100))
        assert not memory.flags.writeable
        arena.release(number)
        arena.release(number)
        arena.release(99)


def test_a_reader_keeps_the_memory_after_the_writer_is_gone() -> None:
    arena = Arena(4096)
    arena.write(0, memoryview(b"kept"))
    memory = open_arena(arena.offer)
    arena.close()
    assert bytes(memory[:4]) == b"kept"


def test_a_full_arena_gives_none_until_a_block_is_released() -> None:
    with closing(Arena(4096)) as arena:
        first = arena.take(4000, 1.0)
        assert first is not None
        assert arena.take(100, 2.0) is None
        assert arena.oldest_s() == 1.0
        arena.release(first[0])
        assert arena.oldest_s() is None
        assert arena.take(100, 3.0) == (2, 0)


def test_blocks_and_rooms_begin_at_cache_lines() -> None:
    with closing(Arena(4096)) as arena:
        assert [arena.take(size, 0.0) for size in (1, 64, 65)] == [(1, 0), (2, 64), (3, 128)]
        room = arena.room(1)
        assert room is not None
        assert arena.take(1, 0.0) == (4, 320)
        del room


def test_files_that_are_no_arena_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("private")
    with path.open() as file, pytest.raises(ValueError, match="is not the arena that was offered"):
        open_arena(ArenaOffer(os.getpid(), file.fileno(), TOKEN, 7))


def test_another_arena_than_the_offered_one_is_refused() -> None:
    with closing(Arena(4096)) as arena, pytest.raises(ValueError, match="is not the arena that was offered"):
        open_arena(ArenaOffer(arena.offer.process, arena.offer.descriptor, TOKEN, 4096))


def test_an_arena_of_another_size_is_refused() -> None:
    with closing(Arena(4096)) as arena, pytest.raises(ValueError, match="4096 bytes, not 8192"):
        open_arena(ArenaOffer(arena.offer.process, arena.offer.descriptor, arena.offer.token, 8192))


def test_an_arena_that_could_shrink_under_its_reader_is_refused() -> None:
    descriptor = os.memfd_create(label(TOKEN), os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, 4096)
        with pytest.raises(ValueError, match="sealed"):
            open_arena(ArenaOffer(os.getpid(), descriptor, TOKEN, 4096))
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        assert len(open_arena(ArenaOffer(os.getpid(), descriptor, TOKEN, 4096))) == 4096
    finally:
        os.close(descriptor)


def test_a_process_that_is_not_here_is_an_os_error() -> None:
    with pytest.raises(OSError, match="No such file"):
        open_arena(ArenaOffer(2**22 + 1, 3, TOKEN, 4096))
