"""What a process imports that a run starts: a server or worker that is started, or replaced, is waited for."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from heterps.config import Adagrad, Adam, Eviction, ExponentialRate, Tiers
from heterps.ps.protocol.specs import DenseSpec, TableSpec, TableSpecs, plain_tables

PRINT = "import sys, json, {module}; print(json.dumps(sorted(sys.modules)))"


@pytest.mark.parametrize(
    ("module", "unneeded"),
    [
        ("heterps.launch.server_process", {"torch", "heterps.training.coordinator", "heterps.report", "fsspec"}),
        ("heterps.launch.worker_process", {"scipy.optimize", "heterps.launch.by_plan", "heterps.report.page"}),
    ],
)
def test_a_process_imports_only_what_it_needs(module: str, unneeded: set[str]) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PRINT.format(module=module)], capture_output=True, text=True, check=True
    )
    assert unneeded.isdisjoint(json.loads(run.stdout))


def test_tables_travel_to_a_server_that_has_no_model() -> None:
    sparse = TableSpec(
        "rows", 16, Adagrad(lr=0.1), 7, 0.01, eviction=Eviction(max_bytes=10**7), tiers=Tiers(memory_bytes=10**8)
    )
    tables = TableSpecs(
        (sparse,),
        (DenseSpec("dense", 10, Adam(lr=0.001), ExponentialRate(every=10), is_frozen=True),),
    )
    there = plain_tables(json.loads(json.dumps(tables.to_plain())))
    assert there == tables
    assert there.digest == tables.digest
