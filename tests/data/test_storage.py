"""Files on S3 and HDFS: real servers on loopback, with delays, failures and a log of what was asked for."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from s3 import S3Server, s3_server
from webhdfs import name_node

from heterps.cli import main
from heterps.config import Format, Schema, Storage, parse_job
from heterps.data.reader import Reader
from heterps.data.sources import open_dataset
from heterps.data.storage import filesystem_of
from heterps.errors import ConfigError, DataError, DataUnreachable

SCHEMA = Schema(label="y", dense=("a",), slots=("s",))


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture
def s3(server: S3Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    """A bucket named `data` with the files of `folder`."""
    monkeypatch.setattr("heterps.data.storage.FIRST_DELAY_S", 0.001)
    server.put("data", folder)
    server.behaviour.log.clear()
    yield Storage(endpoint=server.endpoint)
    server.behaviour.failing, server.behaviour.delay_s = repeat(0), 0.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two Parquet files of many columns in folders by day, and a CSV file."""
    draw = np.random.default_rng(0)
    for day in (1, 2):
        columns = {f"x{i}": draw.normal(size=4000) for i in range(30)}
        columns |= {"y": np.arange(4000) % 2, "a": draw.normal(size=4000), "s": draw.integers(0, 9, 4000)}
        (tmp_path / f"logs/day={day}").mkdir(parents=True)
        pq.write_table(pa.table(columns), tmp_path / f"logs/day={day}/part.parquet", row_group_size=1000)
    text = "y,a,s\n" + "".join(f"{i % 2},{i / 8},{i % 5}\n" for i in range(40_000))
    (tmp_path / "text").mkdir()
    (tmp_path / "text/a.csv").write_text(text)
    (tmp_path / "text/b.csv.gz").write_bytes(gzip.compress(text.encode()))
    return tmp_path


def same_batches(remote: Reader, local: Reader) -> None:
    for (one, _), (other, _) in zip(remote.read(), local.read(), strict=True):
        np.testing.assert_array_equal(one.dense, other.dense)
        np.testing.assert_array_equal(one.slots.keys, other.slots.keys)


# --- S3 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["logs/day=*/*.parquet", "logs/day=1", "logs/day=2/part.parquet", "text"])
def test_batches_from_s3_are_those_of_local_files(s3: Storage, folder: Path, path: str) -> None:
    remote = open_dataset(f"s3://data/{path}", storage=s3)
    assert all(file.address.startswith("s3://data/") for file in remote.files)
    same_batches(Reader(remote, SCHEMA, batch_size=500), Reader(str(folder / path), SCHEMA, batch_size=500))


def test_the_columns_of_a_row_group_are_fetched_together(s3: Storage, server: S3Server) -> None:
    file = open_dataset("s3://data/logs/day=1", storage=s3).files[0]
    server.behaviour.log.clear()
    names = file.schema.names
    assert file.read(2, names).num_rows == 1000
    assert len([method for method, _, _ in server.behaviour.log if method == "GET"]) == 1  # one range for 33 columns
    assert all(method != "HEAD" for method, _, _ in server.behaviour.log)  # the file is not opened anew
    server.behaviour.log.clear()
    file.read(3, ["x0", "s"])
    sizes = [int(end) - int(start) + 1 for start, end in (r[6:].split("-") for _, _, r in server.behaviour.log)]
    assert sum(sizes) < 40_000  # of 270 KB


def test_errors_that_pass_are_survived(s3: Storage, server: S3Server, folder: Path) -> None:
    server.behaviour.failing = chain([503, 500, 0, 503, 0, 0, 500, 0, 503], repeat(0))
    remote = open_dataset("s3://data/logs/day=*/*.parquet", storage=s3)
    server.behaviour.failing = chain([500, 0, 503, 503, 0, 0, 500], repeat(0))
    same_batches(
        Reader(remote, SCHEMA, batch_size=500), Reader(str(folder / "logs/*/*.parquet"), SCHEMA, batch_size=500)
    )


def test_a_server_that_stays_down_is_named(s3: Storage, server: S3Server, monkeypatch) -> None:
    file = open_dataset("s3://data/text/a.csv", storage=s3).files[0]
    server.behaviour.failing = repeat(500)
    monkeypatch.setattr("heterps.data.storage.ATTEMPTS", 2)  # AWS's client makes three of each
    with pytest.raises(DataUnreachable, match=r"s3://data/text/a\.csv: cannot be read, after 2 attempts"):
        file.read(0, ["y"])


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("s3://data/nothing", "s3://data/nothing: there is no such file or folder"),
        ("s3://data/logs/*.csv", "no file matches this pattern"),
        ("s3://data/logs", r"not searched \(day=1, day=2\)"),
        ("s3://nowhere/x.parquet", "s3://nowhere/x.parquet: "),
    ],
)
def test_what_is_not_there_is_told_at_once(s3: Storage, path: str, says: str) -> None:
    with pytest.raises(DataError, match=says) as caught:
        open_dataset(path, storage=s3)
    assert not isinstance(caught.value, DataUnreachable)


@pytest.mark.parametrize("channel", ["memory", pytest.param("ipc", marks=pytest.mark.slow)])
def test_a_job_trains_on_s3_inline_and_on_workers(
    s3: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], channel: str
) -> None:
    """With `memory` workers are threads, which start at once; else they are processes."""
    monkeypatch.chdir(tmp_path)
    data = {
        "train": "s3://data/logs/day=1",
        "test": "s3://data/logs/day=2",
        "storage": s3.model_dump(exclude_unset=True),
        "columns": SCHEMA.model_dump(exclude_unset=True, mode="json"),
        "batch_size": 500,
    }
    job = {"model": {"factory": "ctr_dnn", "args": {"embedding_dim": 4, "hidden": [8]}}, "data": data}
    job |= {"threads": 2, "workers": {"channel": channel}}
    Path("job.yaml").write_text(yaml.safe_dump(job))
    losses = []
    for launcher in ("inline", "local"):
        with pytest.raises(SystemExit) as end:
            main(["train", "job.yaml", "--launcher", launcher, "--json"])
        assert end.value.code == 0
        losses.append(json.loads(capsys.readouterr().out)["log_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_commands_reach_s3_too(s3: Storage, tmp_path: Path, capsys) -> None:
    words = ["s3://data/text/a.csv", str(tmp_path / "out"), "--storage", f"endpoint: {s3.endpoint}", "--json"]
    with pytest.raises(SystemExit) as end:
        main(["data", "convert", *words])
    assert (end.value.code, json.loads(capsys.readouterr().out)["rows"]) == (0, 40_000)


def test_a_forked_process_has_file_systems_of_its_own(s3: Storage) -> None:
    """Connections and threads of pyarrow's file systems do not survive a fork."""
    mine, _ = filesystem_of("s3://data/x", s3)
    assert filesystem_of("s3://data/y", s3)[0] is mine
    child = os.fork()
    if child == 0:
        os._exit(7 if filesystem_of.__globals__["_s3"](os.getpid(), s3, "data") is not mine else 8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


# --- HDFS ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["logs/day=*/*.parquet", "text/*"])
def test_batches_from_webhdfs_are_those_of_local_files(folder: Path, path: str, monkeypatch) -> None:
    monkeypatch.setattr("heterps.data.storage.FIRST_DELAY_S", 0.001)
    faults = chain(*([503, *[0] * 6, -1, *[0] * 7, 500, *[0] * 5] for _ in range(9)), repeat(0))
    with name_node(folder, failing=faults) as host:
        remote = open_dataset(f"{host}/{path}")
        same_batches(Reader(remote, SCHEMA, batch_size=500), Reader(str(folder / path), SCHEMA, batch_size=500))


def test_webhdfs_is_asked_for_a_row_group_once(folder: Path) -> None:
    log: list[str] = []
    with name_node(folder, log=log) as host:
        file = open_dataset(f"{host}/logs/day=1").files[0]
        log.clear()
        file.read(1, file.schema.names)
        file.read(2, file.schema.names)
    assert log == ["OPEN", "READ"] * 2


def test_a_name_node_that_goes_away_is_named(folder: Path, monkeypatch) -> None:
    monkeypatch.setattr("heterps.data.storage.FIRST_DELAY_S", 0.001)
    with name_node(folder) as host:
        file = open_dataset(f"{host}/text/a.csv").files[0]
    with pytest.raises(DataUnreachable, match=r"webhdfs://.*/text/a\.csv: cannot be read, after 5 attempts"):
        file.read(0, ["y"])


def test_hdfs_without_its_library_says_what_to_do() -> None:
    with pytest.raises(DataError, match=r"hdfs://node:8020/x\.parquet: .*libhdfs.* webhdfs:// needs none"):
        open_dataset("hdfs://node:8020/x.parquet")


# --- credentials -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        "train: s3://KEY:SECRET@bucket/x.parquet",
        "train: [a.parquet, 'webhdfs://me:word@node/x.parquet']",
        "train: 'https://host/x.parquet?day=1&X-Amz-Signature=abc'",
        "train: s3://b/x.parquet, storage: {secret_key: abc}",
        "train: s3://b/x.parquet, storage: {AWS_ACCESS_KEY_ID: abc}",
        "train: s3://b/x.parquet, storage: {endpoint: 'http://me:word@minio:9000'}",
    ],
)
def test_credentials_in_a_job_are_refused(data: str) -> None:
    with pytest.raises(ConfigError, match="credentials do not belong in it: set AWS_ACCESS_KEY_ID") as caught:
        parse_job(f"model: {{factory: ctr_dnn}}\ndata: {{{data}}}", "job.yaml")
    assert "abc" not in str(caught.value)
    assert "SECRET" not in str(caught.value).replace("AWS_SECRET_ACCESS_KEY", "")
    assert "me:word" not in str(caught.value)


def test_a_user_without_a_password_is_no_secret() -> None:
    job = parse_job("model: {factory: ctr_dnn}\ndata: {train: 'hdfs://me@node:8020/day=[12]/x'}", "job.yaml")
    assert job.data.train == "hdfs://me@node:8020/day=[12]/x"
    assert Format() == job.data.format
