"""`heterps serve --increments`: each version is the trainer's, whatever happens to increments on their way."""

from __future__ import annotations

import shutil
import threading
from itertools import pairwise
from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from served import Served, served
from trained_runs import own_scores, train_further, train_run

from heterps.config import load_job
from heterps.serving.export import export

NUM_INCREMENTS = 4
EVICTION = {"eviction": {"max_age": 6}}


def visits(num_rows: int, seed: int, newest: int) -> pa.Table:
    """Samples whose ids move on: items below `newest` - 20 do not come any more."""
    draw = np.random.default_rng(seed)
    return pa.table(
        {
            "label": draw.integers(0, 2, num_rows),
            "price": draw.normal(size=num_rows),
            "item": draw.integers(max(0, newest - 20), newest, num_rows),
        }
    )


ASKED = visits(40, 9, 20).append_column("row", pa.array(range(40))).drop(["row", "label"])


class Chain:
    """An export, increments that lead on from it, and the trainer's scores of ASKED at every version."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.names, self.scores = folder, [], {}
        model = {"factory": "ctr_dnn", "args": {"embedding_dim": 4, "hidden": [8]}}
        columns = {"dense": ["price"], "slots": ["item"]}
        run = train_run(folder, visits(160, 0, 20), model, columns, tables=EVICTION)
        checkpoint, before = next((run / "checkpoints").iterdir()), None
        for number in range(NUM_INCREMENTS + 1):
            if number:
                pq.write_table(visits(160, number, 20 + 8 * number), folder / "train.parquet")
                checkpoint = train_further(run, load_job(run / "job.yaml"), checkpoint, epoch=number)
            name = "export" if before is None else f"increments/{number}"
            before = export(run, folder / "made" / name, since=before).version
            self.names.append(before)
            self.scores[before] = own_scores(run, ASKED, folder, checkpoint)["score"]

    @property
    def export(self) -> Path:
        return self.folder / "made" / "export"

    def increment(self, number: int) -> Path:
        return self.folder / "made" / "increments" / str(number)

    def add(self, number: int, to: Path, name: str = "") -> Path:
        """Add an increment as a whole, as `heterps export` does."""
        shutil.copytree(self.increment(number), to.parent / f"draft-{number}")
        return (to.parent / f"draft-{number}").rename(to / (name or str(number)))

    def check(self, server: Served, version: str) -> None:
        found, scores = server.score(ASKED)
        assert found == version
        assert scores == pytest.approx(list(map(float, self.scores[version])), abs=1e-6)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return Chain(tmp_path_factory.mktemp("chain"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "increments").mkdir()
    return tmp_path / "increments"


def at(version: str) -> object:
    return lambda health: health["version"] == version


def refused(text: str) -> object:
    return lambda health: health["following"]["state"] == "refused" and text in health["following"]["detail"]


def test_versions_differ_and_rows_were_evicted(chain: Chain) -> None:
    """Else the other tests would show nothing."""
    scores = list(chain.scores.values())
    assert all(np.abs(one - other).max() > 1e-4 for one, other in pairwise(scores))


def test_whatever_happens_to_increments_the_version_is_old_or_new(chain: Chain, folder: Path) -> None:
    first, second, third, fourth, fifth = chain.names
    with served(chain.export, "--increments", folder, cwd=folder.parent) as server:
        chain.check(server, first)
        chain.add(2, folder)  # out of order
        server.until(refused(f"leads from version {second}"))
        chain.check(server, first)
        chain.add(1, folder)
        server.until(at(third))
        chain.check(server, third)
        chain.add(2, folder, "again")  # doubled
        (folder / "3").mkdir()  # copied file by file, and cut off
        for name in ("manifest.json", "weights.parquet", "rows.parquet"):
            content = (chain.increment(3) / name).read_bytes()
            (folder / "3" / name).write_bytes(content[:-9] if name == "rows.parquet" else content)
        server.until(refused("rows.parquet is damaged"))
        chain.check(server, third)
        assert "unknown" not in server.log.read_text()
        server.process.kill()  # mid-increment
        server.process.wait(30)
    with served(chain.export, "--increments", folder, cwd=folder.parent) as server:
        assert server.version == third
        chain.check(server, third)
        assert "rows.parquet is damaged" in server.log.read_text()
        shutil.copy(chain.increment(3) / "rows.parquet", folder / "3" / "rows.parquet")
        server.until(at(fourth))
        chain.check(server, fourth)
        server.until(lambda health: health["following"]["state"] == "following")
        _hammer(chain, server, folder, fifth)


def _hammer(chain: Chain, server: Served, folder: Path, last: str) -> None:
    """Ask without a pause while a version is put in place: each answer is of one version, and none goes back."""
    seen: list[list[str]] = [[] for _ in range(4)]
    problems: list[BaseException] = []

    def ask(mine: list[str]) -> None:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            one = Served(server.process, server.url, server.version, client, server.log)
            try:
                while last not in mine:
                    found, scores = one.score(ASKED)
                    assert scores == pytest.approx(list(map(float, chain.scores[found])), abs=1e-6)
                    mine.append(found)
            except BaseException as error:
                problems.append(error)

    threads = [threading.Thread(target=ask, args=(mine,)) for mine in seen]
    for thread in threads:
        thread.start()
    while not all(seen) and not problems:
        pass
    chain.add(4, folder)
    for thread in threads:
        thread.join(60)
    assert problems == []
    for mine in seen:
        assert [*dict.fromkeys(mine)] == chain.names[-2:]
        assert mine == sorted(mine, key=int)


def test_a_folder_that_is_not_there_yet_is_waited_for(chain: Chain, tmp_path: Path) -> None:
    later = tmp_path / "later"
    with served(chain.export, "--increments", later, cwd=tmp_path) as server:
        assert server.health()["following"]["state"] == "waiting"
        later.mkdir()
        server.until(lambda health: health["following"]["state"] == "following")
        for number in range(1, NUM_INCREMENTS + 1):
            chain.add(number, later)
            server.until(at(chain.names[number]))
            chain.check(server, chain.names[number])
        found = server.client.get("/metrics").text
        assert f"heterps_serve_version_clock {float(chain.names[-1])}" in found
        assert f"heterps_serve_versions_total {float(NUM_INCREMENTS)}" in found
