"""Inputs that the fuzzer found, or begins with: server and session live on, and take no more memory than they may."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import fuzz_target as target
import pytest
from fuzz_seeds import seeds

FOUND = sorted((Path(__file__).parent / "corpus").iterdir())
MOST_BYTES = 4 * 2**20


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.name[:16])
def test_what_the_fuzzer_found_ends_nothing(path: Path) -> None:
    check(path.read_bytes())


@pytest.mark.parametrize("name", seeds())
def test_good_messages_end_nothing(name: str) -> None:
    check(seeds()[name])


def check(data: bytes) -> None:
    target.run(data)  # kernels that nobody has used before are compiled
    tracemalloc.start()
    try:
        target.run(data)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


def test_an_input_stands_for_the_message_it_was_made_of() -> None:
    for name, data in seeds().items():
        mode, parts = target.cut(data)
        assert target.as_input(mode, parts) == data, name


def test_good_messages_are_understood() -> None:
    """So that the fuzzer begins behind the first checks: most of them are not refused."""
    refused = 0
    for name, data in seeds().items():
        mode, parts = target.cut(data)
        if not name.startswith("answer"):
            server = target.make_server(is_joining=mode == 2)
            server.handle("peer", parts, 0.0)
            refused += bool(server.counts.dropped)
    assert refused <= 6
