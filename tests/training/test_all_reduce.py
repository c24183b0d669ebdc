"""Members of an all-reduce group end with equal bits, listen on loopback alone, and notice who is lost."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from all_reduce_member import listening
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps.config import SGD, AdamW
from heterps.errors import ConfigError, PeerLost
from heterps.processes import Child
from heterps.ps.table.dense import DenseTable
from heterps.training.worker import all_reduce
from heterps.training.worker.all_reduce import AllReduce, LocalDense

DEADLINE_S = 20.0
NAMES = ["worker-0", "worker-1", "worker-2"]
LOOPBACK = {"0100007F"}


def on_threads(work: Callable[[int], Any], count: int) -> list[Any]:
    """What `work` gives for each of `count` members, each on a thread of its own."""
    with ThreadPoolExecutor(count) as threads:
        futures = [threads.submit(work, place) for place in range(count)]
        return [future.result(3 * DEADLINE_S) for future in futures]


@contextmanager
def groups(store: Path | str, count: int, **options: Any) -> Iterator[list[AllReduce]]:
    names = NAMES[:count]
    options = {"deadline_s": DEADLINE_S, **options}
    with ExitStack() as opened:
        made = on_threads(lambda place: AllReduce(names, names[place], store, **options), count)
        for group in made:
            opened.callback(group.close)
        yield made


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


# --- sums ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("size", [0, 1, 2, 1000, 100_003])
def test_all_members_have_the_sum_in_equal_bits(tmp_path: Path, count: int, size: int) -> None:
    arrays = [np.random.default_rng(seed).normal(size=size).astype(np.float32) for seed in range(count)]
    expected = np.sum(np.array(arrays, np.float64), axis=0)
    with groups(tmp_path / "store", count) as made:
        on_threads(lambda place: made[place].sum(arrays[place]), count)
        assert not dist.is_initialized(), "the default group of torch is not ours to take"
    assert len({array.tobytes() for array in arrays}) == 1
    np.testing.assert_allclose(arrays[0], expected, atol=1e-5)


@settings(max_examples=15)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 2**31))
def test_sums_of_any_sizes_follow_each_other(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    arrays = [[torch.from_numpy(rng.normal(size=size).astype(np.float32)) for size in sizes] for _ in range(3)]
    expected = [torch.stack(of_one).double().sum(0) for of_one in zip(*arrays, strict=True)]
    with groups(tmp_path_factory.mktemp("group") / "store", 3) as made:
        on_threads(lambda place: [made[place].sum(array) for array in arrays[place]], 3)
    for first, second, third, total in zip(*arrays, expected, strict=True):
        assert torch.equal(first, second)
        assert torch.equal(first, third)
        torch.testing.assert_close(first.double(), total, rtol=0, atol=1e-5)


def test_members_that_leave_right_after_a_sum_take_it_from_nobody(tmp_path: Path) -> None:
    def live(place: int, store: Path) -> float:
        array = np.full(50_000, place + 1, np.float32)
        with AllReduce(NAMES, NAMES[place], store, deadline_s=DEADLINE_S) as group:
            group.sum(array)
        return float(array.min())

    for attempt in range(10):
        store = tmp_path / str(attempt)
        assert on_threads(lambda place, store=store: live(place, store), 3) == [6, 6, 6]  # type: ignore[misc]
        assert not store.exists(), "the last member to leave tidies up"


def test_one_process_is_in_several_groups(tmp_path: Path) -> None:
    with groups(tmp_path / "a", 2) as one, groups(tmp_path / "b", 3) as other:
        assert on_threads(lambda place: _sum_of_ones(one[place]), 2) == [2, 2]
        assert on_threads(lambda place: _sum_of_ones(other[place]), 3) == [3, 3, 3]


def _sum_of_ones(group: AllReduce) -> float:
    array = np.ones(3, np.float32)
    group.sum(array)
    return float(array[0])


@pytest.mark.parametrize(
    "array",
    [np.zeros(3), np.zeros((4, 4), np.float32)[:, ::2], torch.zeros(3, dtype=torch.int64)],
    ids=["float64", "gaps", "integers"],
)
def test_what_cannot_be_summed_in_place_is_refused(array: Any) -> None:
    with pytest.raises(ValueError, match="contiguous float32"):
        AllReduce(["a"], "a", "unused").sum(array)


def test_an_array_that_is_read_only_is_refused() -> None:
    array = np.zeros(3, np.float32)
    array.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        AllReduce(["a"], "a", "unused").sum(array)


# --- who listens where -----------------------------------------------------------------------------------------------


def test_nothing_listens_beyond_loopback_and_one_member_not_at_all(tmp_path: Path) -> None:
    before = len(listening())
    with groups(tmp_path / "alone", 1):
        assert len(listening()) == before
    with groups(tmp_path / "store", 2):
        assert len(listening()) == before + 2
        assert set(listening()) == LOOPBACK
    with groups(f"tcp://127.0.0.1:{free_port()}", 2) as made:
        assert len(listening()) == before + 3
        assert set(listening()) == LOOPBACK
        assert on_threads(lambda place: _sum_of_ones(made[place]), 2) == [2, 2]
    assert len(listening()) == before


@pytest.mark.parametrize("options", [{"host": "0.0.0.0"}, {"host": "10.1.2.3"}, {"store": "tcp://10.1.2.3:5555"}])
def test_addresses_beyond_loopback_need_a_word(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"has no keys.*may be trusted"):
        AllReduce(["a", "b"], "a", **{"store": "unused", **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("store", ["tcp://127.0.0.1", "tcp://:5", "tcp://127.0.0.1:x", "tcp://127.0.0.1:70000"])
def test_a_store_that_is_no_address_is_refused(store: str) -> None:
    with pytest.raises(ConfigError, match="tcp://HOST:PORT"):
        AllReduce(["a", "b"], "a", store)


def test_a_folder_that_is_not_there_is_named_at_once(tmp_path: Path) -> None:
    begin_s = time.monotonic()
    with pytest.raises(ConfigError, match=rf"make the folder {tmp_path}/missing first"):
        AllReduce(["a", "b"], "a", tmp_path / "missing" / "store", deadline_s=DEADLINE_S)
    assert time.monotonic() - begin_s < DEADLINE_S / 2


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        store = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"cannot listen at {store}.*choose another port"):
            AllReduce(["a", "b"], "a", store, deadline_s=1)


# --- losses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "tcp"])
@pytest.mark.parametrize("own", ["a", "b"])
def test_a_member_that_never_comes_is_lost_at_the_deadline(tmp_path: Path, kind: str, own: str) -> None:
    store = str(tmp_path / "store") if kind == "file" else f"tcp://127.0.0.1:{free_port()}"
    begin_s = time.monotonic()
    with pytest.raises(
        PeerLost, match=f"group of a, b, as {own} sees it, .*({'ab'.replace(own, '')}, which did|nobody)"
    ):
        AllReduce(["a", "b"], own, store, deadline_s=0.3)
    assert time.monotonic() - begin_s < DEADLINE_S


def test_a_member_that_does_not_sum_is_lost_at_the_deadline_and_so_is_the_group(tmp_path: Path) -> None:
    with groups(tmp_path / "store", 2, deadline_s=1.0) as (one, _):
        begin_s = time.monotonic()
        with pytest.raises(PeerLost, match="group of worker-0, worker-1, as worker-0 sees it, lost a member"):
            one.sum(np.ones(3, np.float32))
        assert 0.9 < time.monotonic() - begin_s < DEADLINE_S
        with pytest.raises(PeerLost, match="lost a member while it summed 3 values"):
            one.sum(np.ones(3, np.float32))


def test_a_member_that_leaves_is_lost_at_once(tmp_path: Path) -> None:
    with groups(tmp_path / "store", 2) as (one, other):
        other.close()
        begin_s = time.monotonic()
        with pytest.raises(PeerLost, match="Connection closed by peer"):
            one.sum(np.ones(3, np.float32))
        assert time.monotonic() - begin_s < DEADLINE_S / 2
        with pytest.raises(PeerLost, match="is closed"):
            other.sum(np.ones(3, np.float32))


def test_a_group_that_has_lost_a_member_asks_nobody_again() -> None:
    """What its connections still do after a loss is undefined: they could give a sum of some members."""
    group = AllReduce(["a"], "a", "unused")
    loss = group._loss("lost a member")
    for call in (lambda: group.sum(np.ones(3, np.float32)), lambda: group.agree("a number", "1")):
        with pytest.raises(PeerLost, match="lost a member") as again:
            call()
        assert str(again.value) == str(loss)


def test_members_that_mean_different_groups_do_not_begin(tmp_path: Path) -> None:
    def meet(names: list[str], own: str) -> None:
        with pytest.raises(ConfigError, match="do not agree on the members of the group"):
            AllReduce(names, own, tmp_path / "store", deadline_s=DEADLINE_S)

    other = threading.Thread(target=meet, args=(["a", "b"], "b"))
    other.start()
    meet(["a", "c"], "a")
    other.join(DEADLINE_S)


@pytest.mark.parametrize("names", [["b"], ["a", "a"], []])
def test_a_group_is_of_different_names_and_its_own(names: list[str]) -> None:
    with pytest.raises(ValueError, match="one of different names"):
        AllReduce(names, "a", "unused")


# --- parameters ------------------------------------------------------------------------------------------------------


def test_steps_on_every_member_equal_torch_on_the_summed_gradient(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    start, steps = rng.normal(size=500).astype(np.float32), rng.normal(size=(30, 3, 500)).astype(np.float32)
    tables = [DenseTable(500, AdamW(lr=0.01, weight_decay=0.1)) for _ in range(3)]
    for table in tables:
        table.values[:] = start

    def train(place: int) -> None:
        dense = LocalDense(tables[place], made[place])
        for number, grads in enumerate(steps):
            dense.step(grads[place].copy(), samples=number)

    with groups(tmp_path / "store", 3) as made:
        on_threads(train, 3)
    weight = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = torch.optim.AdamW([weight], lr=0.01, weight_decay=0.1)
    for grads in steps:
        weight.grad = torch.from_numpy(grads.sum(axis=0))
        optimizer.step()
    assert len({table.values.tobytes() + table.state.tobytes() for table in tables}) == 1
    assert tables[0].num_pushes == 30
    np.testing.assert_allclose(tables[0].values, weight.detach().numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("change", ["values", "optimizer", "size", "steps", "state"])
def test_members_that_begin_with_different_parameters_are_refused(tmp_path: Path, change: str) -> None:
    tables = [DenseTable(4, SGD(lr=0.1)), DenseTable(5 if change == "size" else 4, SGD(lr=0.1))]
    if change == "values":
        tables[1].values[2] = 1e-30
    elif change == "optimizer":
        tables[1] = DenseTable(4, SGD(lr=0.2))
    elif change == "steps":
        tables[1].num_pushes = 3
    elif change == "state":
        tables = [DenseTable(4, AdamW(lr=0.1)) for _ in range(2)]
        tables[1].state[7] = 1e-30

    def begin(place: int) -> None:
        with pytest.raises(ConfigError, match="do not agree on the dense parameters"):
            LocalDense(tables[place], made[place])

    with groups(tmp_path / "store", 2) as made:
        on_threads(begin, 2)


def test_a_loss_leaves_the_parameters_as_they_were(tmp_path: Path) -> None:
    tables = [DenseTable(4, SGD(lr=0.1)) for _ in range(2)]
    with groups(tmp_path / "store", 2) as made:
        dense = on_threads(lambda place: LocalDense(tables[place], made[place]), 2)
        made[1].close()
        with pytest.raises(PeerLost):
            dense[0].step(np.ones(4, np.float32))
    assert tables[0].values.tolist() == [0, 0, 0, 0]
    assert tables[0].num_pushes == 0


def test_gradients_of_another_size_are_refused_before_the_others_wait() -> None:
    dense = LocalDense(DenseTable(4, SGD(lr=0.1)), AllReduce(["a"], "a", "unused"))
    with pytest.raises(ValueError, match="4 values need as many gradients"):
        dense.step(np.ones(5, np.float32))


# --- processes -------------------------------------------------------------------------------------------------------


@pytest.fixture
def members(tmp_path: Path) -> Iterator[list[Child]]:
    names = NAMES[:2]
    with ExitStack() as opened:
        children = [Child(name, "all_reduce_member") for name in names]
        for child in children:
            opened.callback(child.close)
            start = {"group": names, "own": child.name, "store": str(tmp_path / "store"), "deadline_s": DEADLINE_S}
            child.send(start)
        for child in children:
            assert set(child.answer(60, "meets the other")["listens"]) == LOOPBACK
        yield children


def test_two_processes_take_the_same_steps(members: list[Child]) -> None:
    seen = []
    for number in range(3):
        for place, child in enumerate(members):
            child.send({"step": [number + place, 1.5, -2.0, 0.1]})
        values = [child.answer(DEADLINE_S, "takes a step")["values"] for child in members]
        assert values[0] == values[1]
        seen.append(values[0])
    assert len(set(seen)) == 3
    for child in members:
        child.stop(DEADLINE_S)


def test_a_process_that_is_killed_is_lost_within_the_deadline(members: list[Child]) -> None:
    survivor, victim = members
    survivor.send({"step": [1, 2, 3, 4]})  # waits for the other now, or will
    os.kill(victim.pid, signal.SIGKILL)
    begin_s = time.monotonic()
    with pytest.raises(PeerLost, match=r"PeerLost: the all-reduce group of worker-0, worker-1, as worker-0 sees it"):
        survivor.answer(2 * DEADLINE_S, "takes a step")
    assert time.monotonic() - begin_s < DEADLINE_S


# --- nccl, by a stand-in that has its calls --------------------------------------------------------------------------


class StandIn:
    """What is used of ProcessGroupNCCL, summing by gloo."""

    class Options:
        _timeout: Any

    def __init__(self, store: Any, place: int, size: int, options: Options) -> None:
        self._gloo = all_reduce._gloo(store, place, size, "127.0.0.1", options._timeout)

    def allreduce(self, tensors: list[torch.Tensor]) -> Any:
        return self._gloo.allreduce(tensors)


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(dist, "ProcessGroupNCCL", StandIn, raising=False)
    monkeypatch.setitem(all_reduce.DEVICES, "nccl", "cpu")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)


@pytest.mark.usefixtures("nccl")
def test_nccl_sums_and_stays_on_loopback(tmp_path: Path) -> None:
    with groups(tmp_path / "store", 3, backend="nccl") as made:
        assert on_threads(lambda place: _sum_of_ones(made[place]), 3) == [3, 3, 3]
        assert os.environ.pop("NCCL_SOCKET_IFNAME") == "lo"


@pytest.mark.usefixtures("nccl")
def test_nccl_loses_a_member_at_the_deadline(tmp_path: Path) -> None:
    with groups(tmp_path / "store", 2, backend="nccl", deadline_s=0.5) as (one, _), pytest.raises(PeerLost):
        one.sum(np.ones(3, np.float32))
    os.environ.pop("NCCL_SOCKET_IFNAME")


def test_nccl_is_refused_where_torch_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    with pytest.raises(ConfigError, match=r"has no nccl.*or use gloo"):
        AllReduce(["a", "b"], "a", "unused", "nccl")
