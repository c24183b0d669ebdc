"""Feed: the batches of one reader, cut for the lanes of a worker: all pieces of all workers are the batch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flow_play import make_layout
from staged import Staged
from tiny import write_tiny

from heterps.config import Data, Job, Schema
from heterps.data.batch import Batch
from heterps.data.decode import Decoder
from heterps.data.reader import Reader, open_reader
from heterps.data.stream import BatchStream
from heterps.model.zoo import ZOO
from heterps.training.model.replicas import Replicas
from heterps.training.protocol.messages import ALL_LANES, Go
from heterps.training.worker.core import LABEL
from heterps.training.worker.feed import Feed, LanePieces

COLUMNS = Schema(dense=("a", "b"), slots=("s", "t"))
INPUTS = ("dense", "slots")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    write_tiny(tmp_path / "train.parquet", 50)
    data = Data(train=str(tmp_path / "train.parquet"), columns=COLUMNS, batch_size=16, epochs=2)
    return Job(data=data, seed=3)


@pytest.fixture
def replicas() -> Replicas:
    staged = Staged(ZOO["ctr_dnn"](COLUMNS, embedding_dim=2, hidden=(4,)), [])
    return Replicas(staged.part(), staged.client())


@pytest.fixture
def feed(job: Job) -> Iterator[Feed]:
    feed = Feed(job, open_reader(job), INPUTS)
    yield feed
    feed.close()


def batches(job: Job) -> list[Batch]:
    """Of the first epoch."""
    reader = Reader(job.data.train, COLUMNS, batch_size=16, shuffle=job.data.shuffle, seed=job.seed)
    return [batch for batch, _ in reader.read()]


def go(batch: int, lane: int = ALL_LANES, epoch: int = 0) -> Go:
    return Go(lane, 1, 0, epoch, batch)


@pytest.mark.parametrize("is_shared", [False, True], ids=["each decodes", "decoded once"])
def test_the_pieces_of_all_workers_together_are_the_batch(
    job: Job, replicas: Replicas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_shared: bool
):
    job = job.model_copy(update={"data": job.data.model_copy(update={"epochs": 1})})  # else the next is read ahead
    decoded = []
    decode = Decoder.decode
    monkeypatch.setattr(Decoder, "decode", lambda self, group: decoded.append(group.index) or decode(self, group))
    layout = make_layout((3,), 4)
    feeds = [Feed(job, open_reader(job), INPUTS, str(tmp_path) if is_shared else "") for _ in range(3)]
    try:
        for worker, feed in zip(layout.workers, feeds, strict=True):
            feed.follow(layout, layout.lanes_of(worker), replicas)
        for number, batch in enumerate(batches(job)):
            pieces = {}
            for feed in feeds:
                taken = feed.take(go(number))
                assert taken is not None
                assert taken.num_samples == len(batch)
                pieces |= taken.values
            whole = [values for _, values in sorted(pieces.items()) if values is not None]
            assert sorted(pieces) == [0, 1, 2, 3]
            np.testing.assert_array_equal(np.concatenate([v["dense"].numpy() for v in whole]), batch.dense)
            np.testing.assert_array_equal(np.concatenate([v["slots"].keys for v in whole]), batch.slots.keys)
            np.testing.assert_array_equal(np.concatenate([v[LABEL].numpy() for v in whole]), batch.label)
            assert max(len(v[LABEL]) for v in whole) - min(len(v[LABEL]) for v in whole) <= 1
    finally:
        for feed in feeds:
            feed.close()
    assert decoded.count(0) == (1 if is_shared else 3) + 1  # once by `batches`
    assert [path.name for path in tmp_path.iterdir()] == ["train.parquet"]


def test_lanes_beyond_the_samples_of_a_small_batch_have_none(feed: Feed, replicas: Replicas):
    layout = make_layout((1,), 5)
    feed.follow(layout, layout.lanes_of("worker-1.0"), replicas)
    pieces = feed.take(go(3))  # of 50 - 3 * 16 = 2 samples
    assert pieces is not None
    assert pieces.num_samples == 2
    assert [lane for lane, values in pieces.values.items() if values is not None] == [2, 4]


def test_without_rounds_a_lane_has_the_whole_batch(feed: Feed, job: Job, replicas: Replicas):
    feed.follow(make_layout((2,), 4, in_rounds=False), [0, 2], replicas)
    pieces = feed.take(go(1, lane=2))
    assert isinstance(pieces, LanePieces)
    (values,) = pieces.values.values()
    assert list(pieces.values) == [2]
    assert values is not None
    np.testing.assert_array_equal(values["dense"].numpy(), batches(job)[1].dense)


@pytest.mark.parametrize(("sync", "first"), [("bsp", 0), ("asp", 3)])
def test_what_a_worker_of_a_new_run_begins_with_is_read_before_it_is_told_so(
    job: Job, replicas: Replicas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str, first: int
) -> None:
    decoded, is_wanted, decode = list[tuple[int, int]](), threading.Semaphore(0), Reader.decode

    def counted(self: Reader, epoch: int, block: int) -> object:
        decoded.append((epoch, block))
        is_wanted.release()
        return decode(self, epoch, block)

    monkeypatch.setattr(Reader, "decode", counted)
    job = Job.model_validate(job.model_dump() | {"sync": sync})
    feed = Feed(job, open_reader(job), INPUTS, str(tmp_path))
    layout = make_layout((2,), 2, in_rounds=sync == "bsp")
    try:
        feed.begin(None)
        feed.begin((1, 2))
        assert is_wanted.acquire(timeout=20)
        feed.follow(layout, layout.lanes_of("worker-1.1"), replicas)
        pieces = feed.take(go(first, 1 if sync == "asp" else ALL_LANES))
        assert pieces is not None
        (values,) = pieces.values.values()
        assert values is not None
        whole = batches(job)[first]
        mine = slice(None) if sync == "asp" else slice(len(whole) // 2, None)
        np.testing.assert_array_equal(values["dense"].numpy(), whole.dense[mine])
    finally:
        feed.close()
    assert decoded.count((0, 0)) == 2, "by this worker once, and once by `batches`"


def test_the_run_that_a_worker_goes_on_with_is_announced(feed: Feed, replicas: Replicas, monkeypatch):
    announced: list[tuple[int, int]] = []
    monkeypatch.setattr(BatchStream, "announce", lambda self, *key: announced.append(key))
    feed.follow(make_layout((2,), 2, in_rounds=False), [0], replicas)
    for next_run in (0, 3):
        assert feed.take(Go(0, 1, 0, 1, 2, next_run=next_run)) is not None
    assert announced == [(1, 3)]


def test_an_epoch_has_so_many_batches_and_no_more(feed: Feed, replicas: Replicas):
    feed.follow(make_layout((1,), 1, in_rounds=False), [0], replicas)
    assert feed.take(go(4, lane=0)) is None
    assert feed.num_batches(0) == 4


def test_each_epoch_has_an_order_of_its_own(feed: Feed, replicas: Replicas):
    feed.follow(make_layout((1,), 1, in_rounds=False), [0], replicas)
    first, second = (feed.take(go(0, lane=0, epoch=epoch)) for epoch in (0, 1))
    assert first is not None
    assert second is not None
    assert first.values[0] is not None
    assert second.values[0] is not None
    assert not np.array_equal(first.values[0]["dense"].numpy(), second.values[0]["dense"].numpy())


def test_after_a_change_of_layout_pieces_are_of_the_new_lanes_whatever_was_read_ahead(
    feed: Feed, job: Job, replicas: Replicas
):
    feed.follow(make_layout((1,), 2), range(2), replicas)
    feed.take(go(0))
    feed.follow(make_layout((1,), 4, epoch=2), range(4), replicas)
    pieces = feed.take(go(1))  # made ready for two lanes
    assert pieces is not None
    assert [len(values[LABEL]) for values in pieces.values.values() if values is not None] == [4, 4, 4, 4]
    whole = np.concatenate([values["slots"].keys for values in pieces.values.values() if values is not None])
    np.testing.assert_array_equal(whole, batches(job)[1].slots.keys)


def test_a_model_without_slots_has_what_it_asks_for(job: Job):
    feed = Feed(job, open_reader(job), ("dense",))
    try:
        feed.follow(make_layout((1,), 1, in_rounds=False), [0], None)  # type: ignore[arg-type]
        pieces = feed.take(go(0, lane=0))
        assert pieces is not None
        assert pieces.values[0] is not None
        assert set(pieces.values[0]) == {"dense", LABEL}
    finally:
        feed.close()
