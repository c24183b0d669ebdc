"""Readers of one machine that share what they decode read what each alone would, and decode each row group once."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heterps.config import Schema
from heterps.data import reader as reader_module
from heterps.data.batch import Batch
from heterps.data.decode import Decoder
from heterps.data.reader import Blocks, Position, Reader
from heterps.data.shared import SharedRows
from heterps.errors import DataError

SCHEMA = Schema(label="label", dense=("row",), slots=("a", "b"), slot_missing="skip")
NUM_ROWS, NUM_READERS = 120, 3


@pytest.fixture(params=[False, True], ids=["single ids", "lists"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """12 row groups in blocks of two; every seventh id is null, and its row is skipped."""
    rows = range(NUM_ROWS)
    ids = [[row] * (row % 4) if request.param else row for row in rows]
    table = {"label": [row % 2 for row in rows], "row": [float(row) for row in rows], "a": ids,
             "b": [row if row % 7 else None for row in rows]}  # fmt: skip
    pq.write_table(pa.table(table), tmp_path / "data.parquet", row_group_size=10)
    return tmp_path / "data.parquet"


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "BLOCK_ROWS", 16)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often each row group was decoded, by any reader."""
    counts: Counter[int] = Counter()
    decode = Decoder.decode

    def counted(self: Decoder, group: Any) -> Any:
        counts[group.index] += 1
        return decode(self, group)

    monkeypatch.setattr(Decoder, "decode", counted)
    return counts


def make(path: Path, shared: SharedRows | None = None, **options: Any) -> Reader:
    reader = Reader(str(path), SCHEMA, **{"batch_size": 8, "seed": 5, **options})
    reader.shared = shared
    return reader


def arrays(batches: list[Batch]) -> list[np.ndarray]:
    found = [[batch.dense, batch.label, batch.slots.keys, batch.slots.offsets] for batch in batches]
    return [values for batch in found for values in batch if values is not None]


def read_together(readers: list[Reader], epoch: int = 0) -> list[list[Batch]]:
    """The batches of an epoch by each reader, on a thread each, one batch at a time as in rounds."""
    found: list[list[Batch]] = [[] for _ in readers]
    barrier = threading.Barrier(len(readers), timeout=30)

    def run(number: int) -> None:
        for batch, _ in readers[number].read(Position(epoch)):
            found[number].append(batch)
            barrier.wait()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(readers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_every_reader_has_all_batches_and_each_row_group_is_decoded_once_an_epoch(
    path: Path, tmp_path: Path, decoded: Counter[int]
) -> None:
    alone = make(path)
    readers = [make(path, SharedRows(tmp_path / "shared" / "rows", 3)) for _ in range(NUM_READERS)]
    for epoch in (0, 1):
        expected = arrays([batch for batch, _ in alone.read(Position(epoch))])
        decoded.clear()
        for batches in read_together(readers, epoch):
            for mine, other in zip(arrays(batches), expected, strict=True):
                np.testing.assert_array_equal(mine, other)
        assert decoded == Counter(range(12))
    for reader in readers:
        assert reader.counts == alone.counts
        assert reader.num_batches == alone.num_batches
    kept = {tuple(found.name.split(".")[:2]) for found in (tmp_path / "shared" / "rows").iterdir()}
    assert len(kept) == 3
    for reader in readers:
        assert reader.shared is not None
        reader.shared.close()
    assert not (tmp_path / "shared").exists()


def test_shared_rows_are_mapped_without_the_parser_of_python(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11's parser fails now and then while several threads parse, and readers are threads."""
    monkeypatch.setattr("ast.literal_eval", lambda text: pytest.fail(f"parsed {text!r}"))
    expected = arrays([batch for batch, _ in make(path).read()])
    for _ in range(2):
        batches = [batch for batch, _ in make(path, SharedRows(tmp_path / "rows", 12)).read()]
        assert all(np.array_equal(mine, other) for mine, other in zip(arrays(batches), expected, strict=True))


def test_a_reader_that_is_late_or_has_no_folder_decodes_for_itself(
    path: Path, tmp_path: Path, decoded: Counter[int]
) -> None:
    expected = arrays([batch for batch, _ in make(path).read()])
    (tmp_path / "file").touch()
    for folder in (tmp_path / "rows", tmp_path / "rows", tmp_path / "file" / "rows"):
        decoded.clear()
        batches = [batch for batch, _ in make(path, SharedRows(folder, 1)).read()]
        assert all(np.array_equal(mine, other) for mine, other in zip(arrays(batches), expected, strict=True))
        assert decoded.total() >= 10  # of 12: the last block was there


def test_a_row_group_whose_reader_failed_is_tried_by_the_next(path: Path, tmp_path: Path) -> None:
    shared = SharedRows(tmp_path / "rows", 2)
    reader = make(path, shared)
    group = reader.epoch(0).blocks[0][1]
    message = f"{group}: broken"

    def fail(numbers: list[int]) -> Any:
        raise DataError(message)

    with pytest.raises(DataError, match="broken"):
        shared.decode((0, 0), 2, fail)
    assert len(reader.decode(0, 0)[1]) == len(make(path).decode(0, 0)[1])


def test_a_share_of_a_batch_is_gathered_as_if_it_were_cut_out_of_the_whole(path: Path) -> None:
    rows, _ = Blocks(make(path)).batch(Position(0, 0, 12)) or pytest.fail("there is a batch")
    assert len(rows.pieces) == 2, "it spans blocks"
    whole = rows.pick()
    for bounds in ([(0, 8)], [(1, 3), (5, 8)], [(3, 3), (6, 7)], [(2, 2)]):
        wanted = [number for first, last in bounds for number in range(first, last)]
        share = rows.pick(bounds)
        np.testing.assert_array_equal(share.label, whole.label[wanted])
        np.testing.assert_array_equal(share.dense, whole.dense[wanted])
        bags = [share.slots.select([name]) for name in SCHEMA.slots]
        ends = [np.arange(len(wanted) + 1) if one.offsets is None else one.offsets for one in bags]
        for name, one, end in zip(SCHEMA.slots, bags, ends, strict=True):
            of_whole = whole.slots.select([name])
            starts = np.arange(len(whole) + 1) if of_whole.offsets is None else of_whole.offsets
            for place, number in enumerate(wanted):
                expected = of_whole.keys[starts[number] : starts[number + 1]]
                np.testing.assert_array_equal(one.keys[end[place] : end[place + 1]], expected)
