"""Rows read from the files of a checkpoint are those of the table that was saved."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest

from heterps.checkpoint.indexed_rows import IndexedRows
from heterps.checkpoint.row_folder import DRAFT, RowFolder
from heterps.checkpoint.saved_rows import SavedRows, SavedTable
from heterps.config import Adagrad, Normal
from heterps.ps.keys.dedup import make_lookup
from heterps.ps.protocol.specs import TableSpec

SPEC = TableSpec("t", 3, Adagrad(lr=0.1), seed=7, init_scale=0.5)


def trained(spec: TableSpec, keys: np.ndarray):
    table = spec.make_shard()
    table.pull(keys)
    table.push(keys, np.random.default_rng(0).normal(size=(len(keys), spec.dim)).astype(np.float32))
    return table


def saved(tmp_path, spec, table, num_files: int = 1) -> SavedTable:
    rows = table.export_rows()
    folder, paths = RowFolder(tmp_path), []
    bounds = [len(rows.keys) * i // num_files for i in range(num_files + 1)]
    for number, (a, b) in enumerate(pairwise(bounds)):
        part = rows.select(np.arange(a, b))
        folder.write(f"{DRAFT}part{number}.arrow", [part], b - a, (spec.dim, rows.state.shape[1]))
        paths.append(tmp_path / f"{DRAFT}part{number}.arrow")
    return SavedTable(spec, IndexedRows(paths))


@pytest.mark.parametrize("num_files", [1, 3])
@pytest.mark.parametrize("spec", [SPEC, TableSpec("t", 4, Adagrad(lr=0.1), 1, 0.1, Normal(std=2.0))])
def test_known_keys_have_their_values_and_others_their_initial_ones(tmp_path, num_files, spec):
    random = np.random.default_rng(1)
    keys = np.array([0, 2**64 - 1, 2**63, *random.integers(0, 2**63, 500)], np.uint64)
    keys = np.unique(keys)
    random.shuffle(keys)
    table = trained(spec, keys[:400])
    found = saved(tmp_path, spec, table, num_files)
    assert len(found) == 400
    values, is_known = found.pull(keys)
    np.testing.assert_array_equal(values, table.pull(keys, create=False))
    assert is_known.tolist() == [True] * 400 + [False] * (len(keys) - 400)
    assert len(table) == 400, "the reference created rows, so it proves nothing"


def test_a_table_without_rows_has_initial_values(tmp_path):
    found = saved(tmp_path, SPEC, SPEC.make_shard())
    keys = np.arange(5, dtype=np.uint64)
    values, is_known = found.pull(keys)
    np.testing.assert_array_equal(values, SPEC.make_shard().pull(keys))
    assert not is_known.any()


def test_a_client_of_saved_rows_answers_lookups_counts_them_and_refuses_gradients(tmp_path):
    keys = np.array([5, 3, 5, 9, 7, 7], np.uint64)
    table = trained(SPEC, np.array([3, 5, 9], np.uint64))
    client = SavedRows({"t": saved(tmp_path, SPEC, table)})
    lookup = make_lookup(keys)
    rows = client.pull("t", lookup).result()
    np.testing.assert_array_equal(rows[lookup.inverse], table.pull(keys, create=False))
    assert client.asked == {"t": (6, 2)}
    with pytest.raises(RuntimeError, match="resume the run"):
        client.push("t", lookup, rows)
    client.close()


WRITE = """
import sys
from pathlib import Path
import numpy as np
from heterps.checkpoint.row_folder import RowFolder
from heterps.ps.table.rows import Rows
one, none = np.ones(5, np.float32), np.ones((5, 0), np.float32)
rows = Rows(np.arange(5, dtype=np.uint64), np.ones((5, 3), np.float32), none, one, one.view(np.uint32))
RowFolder(Path()).write(".saving-1/rows.arrow", [rows], 5, (3, 0))
print("pandas" in sys.modules)
"""


def test_the_first_checkpoint_of_a_server_does_not_wait_for_an_import_of_pandas(tmp_path):
    (tmp_path / ".saving-1").mkdir()
    found = subprocess.run([sys.executable, "-c", WRITE], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert found.stdout == "False\n"
