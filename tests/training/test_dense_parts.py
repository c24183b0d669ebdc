"""Dense parameters on servers, or with the workers of a stage: both take the step of the sum of all gradients."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterps.config import Adam
from heterps.ps.client.local import in_process
from heterps.ps.protocol.specs import DenseSpec, TableSpecs
from heterps.ps.table.dense import DenseTable
from heterps.training.worker.dense_parts import ReducedDense, ServedDense, dense_state

TABLES = TableSpecs(
    (), (DenseSpec("dense.0", 3, Adam()), DenseSpec("dense.0-1", 2, Adam()), DenseSpec("dense.1", 4, Adam()))
)
BEGIN = {"dense.0": np.array([1.0, 2.0, 3.0], np.float32), "dense.0-1": np.array([4.0, 5.0], np.float32)}


def begun(num_steps: int = 0) -> dict[str, dict[str, Any]]:
    state = {}
    for name, values in BEGIN.items():
        table = DenseTable(len(values), Adam())
        table.values[:] = values
        for _ in range(num_steps):
            table.push(np.ones(len(values), np.float32))
        state[name] = dense_state(table)
    return state


def test_served_parameters_are_those_of_the_client_s_own_tables():
    client = in_process(TABLES)
    for name, values in BEGIN.items():
        client.fill_dense(name, values).result()
    dense = ServedDense(client, list(BEGIN))
    pulled = dense.pull()
    assert pulled.keys() == BEGIN.keys()
    before = {name: values.result().copy() for name, values in pulled.items()}
    dense.push("dense.0", np.ones(3, np.float32), 0, None).result()
    after = {name: values.result() for name, values in dense.pull().items()}
    assert (after["dense.0"] < before["dense.0"]).all()
    np.testing.assert_array_equal(after["dense.0-1"], before["dense.0-1"])
    assert dense.state() == {}, "the servers have it all"
    dense.close()
    client.close()


def reduced(name: str, folder: Path, members: Mapping[str, tuple[str, ...]], num_steps: int = 0) -> ReducedDense:
    return ReducedDense(TABLES, members, name, begun(num_steps), lambda table: folder / table, 20.0)


@pytest.mark.parametrize("num_steps", [0, 3])
def test_workers_that_reduce_take_the_step_of_the_sum_and_stay_the_same(tmp_path: Path, num_steps: int):
    names = ("worker-1.0", "worker-1.1", "worker-1.2")
    members = {"dense.0": names, "dense.0-1": names}
    grads = {name: np.array([1.0, -2.0, 0.5], np.float32) * (k + 1) for k, name in enumerate(names)}
    total = sum(grads.values())  # before they are reduced in place
    found: dict[str, dict[str, Any]] = {}

    def work(name: str) -> None:
        dense = reduced(name, tmp_path, members, num_steps)
        try:
            dense.push("dense.0", grads[name], 0, None).result()
            found[name] = dense.state()
        finally:
            dense.close()

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    table = DenseTable(3, Adam())
    table.values[:] = BEGIN["dense.0"]
    for _ in range(num_steps):
        table.push(np.ones(3, np.float32))
    table.push(total)
    for name in names:
        np.testing.assert_allclose(found[name]["dense.0"]["values"].numpy(), table.values, rtol=1e-6)
        np.testing.assert_allclose(found[name]["dense.0"]["state"].numpy(), table.state, rtol=1e-6)
        assert found[name]["dense.0"]["num_steps"] == num_steps + 1
        assert found[name]["dense.0-1"]["num_steps"] == num_steps
        assert (
            found[name]["dense.0"]["values"].numpy().tobytes() == found[names[0]]["dense.0"]["values"].numpy().tobytes()
        )


def test_a_worker_alone_has_the_tables_of_its_stage_and_no_others(tmp_path: Path):
    dense = reduced("a", tmp_path, {"dense.0": ("a",), "dense.0-1": ("a",)})
    assert dense.pull().keys() == {"dense.0", "dense.0-1"}
    dense.close()


def test_a_state_is_a_copy():
    table = DenseTable(2, Adam())
    state = dense_state(table)
    table.push(np.ones(2, np.float32))
    assert state["num_steps"] == 0
    assert not state["values"].numpy().any()
