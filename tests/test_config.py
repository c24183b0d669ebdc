"""Every rule of the job file, and what its error says: file, line, field, value, what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps.config import (
    PAPER_CLUSTER,
    SGD,
    Adagrad,
    Adam,
    Data,
    DenseOptimizer,
    Job,
    Model,
    Optimizers,
    Schema,
    Start,
    load_cluster,
    load_job,
)
from heterps.config.optimizer_kinds import SparseOptimizer
from heterps.errors import ConfigError
from heterps.yamlfile import dump_yaml

DATA = "data: {train: x}\n"
CPU = "cpu: {usd_per_hour: 0.04, limit: 8}"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def kinds(optimizers: Any) -> str:
    """The names of optimizers in job files."""
    return ", ".join(optimizer.model_fields["kind"].default for optimizer in get_args(optimizers))


def job(text: str) -> Job:
    Path("job.yaml").write_text(text, encoding="utf-8")
    return load_job("job.yaml")


def complaint(text: str) -> str:
    with pytest.raises(ConfigError) as error:
        job(text)
    return str(error.value)


def test_a_job_needs_its_training_data_and_nothing_else() -> None:
    assert job(DATA) == Job(data=Data(train="x"))
    assert job(DATA).cluster == PAPER_CLUSTER
    assert complaint("name: a\n") == "job.yaml:1: data is missing; it has no default, so write it."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: a\ndata:\n  batch_size: 3\n", "job.yaml:2: data.train is missing; it has no default, so write it."),
        (DATA + "threads: 0", "job.yaml:2: threads: must be greater than 0 (got 0)."),
        (DATA + "threads: two", "job.yaml:2: threads: must be a whole number (got 'two')."),
        (DATA + "seed: -1", "job.yaml:2: seed: must be at least 0 (got -1)."),
        (DATA + f"seed: {2**63}", f"job.yaml:2: seed: must be less than {2**63} (got {2**63})."),
        (DATA + "name: ''", "job.yaml:2: name: must not be empty (got '')."),
        (DATA + "name: 3", "job.yaml:2: name: must be text (got 3)."),
        (DATA + "launcher: mars", "job.yaml:2: launcher: must be 'inline', 'local' or 'ray' (got 'mars')."),
        (DATA + "model: ctr_dnn", "job.yaml:2: model: must be a mapping of fields to values (got 'ctr_dnn')."),
        (DATA + "checkpoint: {keep: 1}", "job.yaml:2: checkpoint.keep: must be at least 2 (got 1)."),
        (
            DATA + "checkpoint: {every_minutes: .inf}",
            "job.yaml:2: checkpoint.every_minutes: must be a finite number (got Infinity).",
        ),
        ("data: {train: 3}", "job.yaml:1: data.train: must be text or a list (got 3)."),
        ("data: {train: []}", "job.yaml:1: data.train: must not be empty (got [])."),
        ("data: {train: ''}", "job.yaml:1: data.train: must not be empty (got '')."),
        ("data:\n  train:\n  - a\n  - 3", "job.yaml:4: data.train.1: must be text (got 3)."),
        ("data: {train: x, epochs: 1.5}", "job.yaml:1: data.epochs: must be a whole number (got 1.5)."),
        ("data: {train: x, shuffle: maybe}", "job.yaml:1: data.shuffle: must be true or false (got 'maybe')."),
        (
            "data:\n  train: x\n  columns:\n    dense_missing: drop",
            "job.yaml:4: data.columns.dense_missing: must be 'fill', 'error' or 'skip' (got 'drop').",
        ),
        (
            DATA + "optimizers:\n  sparse:\n    kind: lamb",
            f"job.yaml:4: optimizers.sparse.kind: must be one of: {kinds(SparseOptimizer)} (got 'lamb').",
        ),
        (
            DATA + "optimizers:\n  dense: {lr: 1}",
            f"job.yaml:3: optimizers.dense.kind is missing; write one of: {kinds(DenseOptimizer)}.",
        ),
        (DATA + "sync: {kind: bps}", "job.yaml:2: sync.kind: must be one of: bsp, asp, ssp, dssp (got 'bps')."),
        (DATA + "sync: {lower: 3}", "job.yaml:2: sync.kind is missing; write one of: bsp, asp, ssp, dssp."),
        (
            DATA + "optimizers: {dense: {kind: adam, beta1: 1}}",
            "job.yaml:2: optimizers.dense.beta1: must be less than 1 (got 1).",
        ),
    ],
)
def test_a_broken_rule_names_line_field_value_and_what_is_allowed(text: str, expected: str) -> None:
    assert complaint(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("daat: {}\n" + DATA, "job.yaml:1: daat is not a field. Did you mean 'data'? Allowed here: checkpoint,"),
        ("data:\n  train: x\n  batchsize: 1", "job.yaml:3: data.batchsize is not a field. Did you mean 'batch_size'?"),
        (DATA + "zzz: 1", "job.yaml:2: zzz is not a field. Allowed here: checkpoint,"),
        (
            DATA + "optimizers:\n  sparse:\n    kind: adagrad\n    epsilon: 1",
            "job.yaml:5: optimizers.sparse.epsilon is not a field. Did you mean 'eps'? "
            "Allowed here: eps, initial_accumulator, kind, lr, sample_gradient, weight_decay.",
        ),
        (
            DATA + "cluster:\n  resources:\n    cpu: {price: 1, usd_per_hour: 1, limit: 1}\n  server_resource: cpu",
            "job.yaml:4: cluster.resources.cpu.price is not a field. Allowed here: alone, billing_s, device, "
            "disk_gb, disk_usd_per_gb_hour, kind, limit, memory_gb, minimum_s, port_gbps, spot, startup_s, "
            "usd_per_hour, zone.",
        ),
    ],
)
def test_an_unknown_field_gets_the_nearest_name_and_the_list(text: str, expected: str) -> None:
    assert complaint(text).startswith(expected)


def test_rows_of_adagrad_start_at_the_size_of_a_sample_s_gradient_whatever_the_batch() -> None:
    for batch_size in (1, 100):
        data, sparse = f"{{train: x, batch_size: {batch_size}}}", "{kind: adagrad, sample_gradient: 0.5}"
        made = job(f"data: {data}\noptimizers: {{sparse: {sparse}}}")
        assert made.optimizers.sparse == Adagrad(initial_accumulator=(0.5 / batch_size) ** 2)
    both = "optimizers: {sparse: {kind: adagrad, sample_gradient: 0.5, initial_accumulator: 1}}"
    assert "give initial_accumulator or sample_gradient, not both" in complaint(DATA + both)


def test_everything_wrong_is_reported_at_once() -> None:
    assert complaint("data:\n  trian: x\nseed: -1\nname: 7\n").splitlines() == [
        "job.yaml:1: data.train is missing; it has no default, so write it.",
        "job.yaml:2: data.trian is not a field. Did you mean 'train'? "
        "Allowed here: batch_size, columns, epochs, format, prefetch, shuffle, storage, test, train, "
        "validation.",
        "job.yaml:4: name: must be text (got 7).",
        "job.yaml:3: seed: must be at least 0 (got -1).",
    ]


def test_fields_that_do_not_fit_each_other_are_named_by_the_rule_and_the_whole_job_is_not_shown() -> None:
    assert complaint(DATA + "sync: asp\nworkers: {dense: all_reduce}") == (
        "job.yaml:1: workers.dense: all_reduce keeps workers in step, so sync must be bsp, not asp."
    )


def test_long_values_are_cut() -> None:
    assert complaint(DATA + f"model: {'x' * 500}").endswith("xxx...).")
    assert len(complaint(DATA + f"model: {'x' * 500}")) < 200


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("{label: I1}", "data.columns: a column has one role only; named twice: I1"),
        ("{dense: [a, b], slots: [b, a, c]}", "named twice: a, b"),
        ("{dense: [], slots: []}", "a schema needs at least one dense column or one slot"),
    ],
)
def test_columns_with_two_roles_or_none_are_refused(columns: str, message: str) -> None:
    assert message in complaint(f"data: {{train: x, columns: {columns}}}")


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ("resources: {}\nserver_resource: cpu", "a cluster needs at least one resource, for example cpu:"),
        (
            "resources: {cpu: {usd_per_hour: 0.04, limit: 0}}\nserver_resource: cpu",
            "every resource has limit 0, so nothing can be rented: raise a limit",
        ),
        (f"resources: {{{CPU}}}\nserver_resource: gpu", "server_resource 'gpu' is not one of the resources: cpu"),
        (
            "resources:\n  cpu: {usd_per_hour: -1, limit: 1}\nserver_resource: cpu",
            "cluster.yaml:2: resources.cpu.usd_per_hour: must be at least 0 (got -1).",
        ),
        (
            "resources:\n  cpu: {usd_per_hour: .nan, limit: 1}\nserver_resource: cpu",
            "must be a finite number (got NaN)",
        ),
        ("resources: [cpu]\nserver_resource: cpu", "resources: must be a mapping of fields to values"),
        ("", "a cluster file is a mapping of fields to values; this one is empty"),
    ],
)
def test_a_bad_cluster_file_is_named_by_itself_and_from_the_job(cluster: str, message: str) -> None:
    Path("cluster.yaml").write_text(cluster)
    with pytest.raises(ConfigError) as error:
        load_cluster("cluster.yaml")
    assert message in str(error.value)
    assert complaint("name: a\n" + DATA + "cluster: cluster.yaml").startswith("job.yaml:3: cluster: cluster.yaml:")
    assert message in complaint(DATA + "cluster: cluster.yaml")


def test_a_cluster_file_and_the_same_cluster_inline_are_one() -> None:
    inline = f"resources: {{{CPU}}}\nserver_resource: cpu\n"
    Path("cluster.yaml").write_text(inline)
    indented = "".join(f"  {line}\n" for line in inline.splitlines())
    assert job(DATA + "cluster: cluster.yaml") == job(DATA + "cluster:\n" + indented)
    assert "job.yaml:2: cluster: nowhere.yaml: there is no such cluster file" in complaint(
        DATA + "cluster: nowhere.yaml"
    )


def test_a_job_cannot_be_changed() -> None:
    with pytest.raises(ConfigError, match=r"seed of a Job cannot be changed.*model_copy"):
        job(DATA).seed = 3  # type: ignore[misc]


def test_threads_default_to_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    assert job(DATA).num_threads == 7
    assert job(DATA + "threads: 3").num_threads == 3


positive = st.floats(1e-12, 1e12)
text = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]))  # in JSON, YAML refuses or folds the others
name = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), min_size=1, max_size=200)
plain = st.from_regex(r"[a-z.]{1,9}", fullmatch=True)
jobs = st.builds(
    Job,
    name=name,
    data=st.builds(
        Data,
        train=name | st.lists(name, min_size=1, max_size=3).map(tuple),
        batch_size=st.integers(1, 10**9),
        shuffle=st.booleans(),
    ),
    model=st.builds(Model, args=st.dictionaries(text, st.integers() | text | st.lists(st.floats(-1, 1)), max_size=3)),
    optimizers=st.builds(
        Optimizers,
        sparse=st.builds(SGD, lr=positive) | st.builds(Adagrad, eps=positive),
        dense=st.builds(Adam, lr=positive, beta1=st.floats(0, 1, exclude_max=True)),
        freeze=st.lists(name, max_size=2).map(tuple),
    ),
    start=st.none() | st.builds(Start, model=name, rename=st.dictionaries(plain, plain, max_size=2)),
    seed=st.integers(0, 2**63 - 1),
)


@given(jobs)
@settings(max_examples=50)
def test_a_job_written_out_loads_as_the_same_job(any_job: Job) -> None:
    for text in (dump_yaml(any_job), any_job.model_dump_json()):
        Path("written.yaml").write_text(text, encoding="utf-8", newline="")
        assert load_job("written.yaml") == any_job


@pytest.mark.parametrize(
    ("same_ids", "problem"),
    [
        ({"a": "x"}, "a: x must be two of the slots: a, b, c"),
        ({"x": "a"}, "x: a must be two of the slots: a, b, c"),
        ({"a": "a"}, "a: a must lead to a slot with ids of its own"),
        ({"a": "b", "b": "c"}, "a: b must lead to a slot with ids of its own"),
    ],
)
def test_same_ids_lead_from_a_slot_to_one_with_ids_of_its_own(same_ids: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Schema(slots=("a", "b", "c"), same_ids=same_ids)
