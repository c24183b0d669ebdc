from __future__ import annotations

import numpy as np

from heterps.data.batch import Batch, Slots
from heterps.sim.supply import Supply


def make_batch(first: int, num: int) -> Batch:
    """Samples numbered from `first` on; sample i has i % 3 keys, all of them i."""
    numbers = np.arange(first, first + num)
    offsets = np.concatenate([[0], np.cumsum(numbers % 3)]).astype(np.int64)
    keys = np.repeat(numbers, numbers % 3).astype(np.uint64)
    return Batch(numbers[:, None].astype(np.float32), Slots(("s",), keys, offsets), (numbers % 2).astype(np.float32))


def numbers(batch: Batch | None) -> list[int]:
    assert batch is not None
    found = [int(x) for x in batch.dense[:, 0]]
    assert batch.slots.keys.tolist() == [i for i in found for _ in range(i % 3)]
    assert batch.label.tolist() == [i % 2 for i in found]
    assert len(batch.slots) == len(batch)
    return found


def test_batches_are_cut_to_what_is_taken_and_end_where_the_readers_end() -> None:
    supply = Supply(iter([make_batch(0, 6), make_batch(6, 3)]), 6)
    assert numbers(supply.take(4)) == [0, 1, 2, 3]
    assert numbers(supply.take(4)) == [4, 5]
    assert numbers(supply.take(2)) == [6], "half a batch is divided as a whole one"
    assert numbers(supply.take(4)) == [7, 8]
    assert supply.take(1) is None
    assert supply.take(1) is None


def test_a_whole_batch_is_handed_on_as_it_is() -> None:
    batch = make_batch(0, 4)
    assert Supply(iter([batch]), 4).take(4) is batch


def test_what_was_given_back_comes_next_also_after_the_end() -> None:
    supply = Supply(iter([make_batch(0, 4)]), 4)
    first, second = supply.take(3), supply.take(3)
    assert second is not None
    assert supply.take(3) is None
    supply.give_back(second)
    assert numbers(supply.take(3)) == [3]
    assert supply.take(3) is None
    assert numbers(first) == [0, 1, 2]
