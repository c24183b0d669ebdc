"""`heterps.train`: a complete run folder, and nothing where a job cannot run."""

from __future__ import annotations

import json

import pytest
from torch import nn

import heterps
from heterps.config import Model, load_job
from heterps.data.reader import Reader
from heterps.errors import ConfigError, DataError, ModelError, RunError
from heterps.planning.inline import inline_plan
from heterps.planning.plan import Plan, PlannedServers, Stage, load_plan
from heterps.profiling.profile import Cost, LayerProfile, Profile
from heterps.training.run.observer import Observer

MODELS = """
import torch
from heterps.nn import SparseEmbedding

class Mine(torch.nn.Module):
    def __init__(self, schema, width=4):
        super().__init__()
        self.embedding = SparseEmbedding(schema.slots, width)
        self.out = torch.nn.Linear(2 + 2 * width, 1)

    def forward(self, dense, slots):
        return self.out(torch.cat([dense, self.embedding(slots).flatten(1)], 1)).squeeze(1)

class Branching(Mine):
    def forward(self, dense, slots):
        logits = super().forward(dense, slots)
        return logits * 2 if logits.mean() > 100 else logits

class Broken(Branching):
    def forward(self, dense, slots):
        return super().forward(dense[:, :1] if dense.sum() != 0 else dense, slots)
"""


class Warnings(Observer):
    def __init__(self):
        self.messages = []

    def warned(self, message):
        self.messages.append(message)


@pytest.fixture
def job(tiny_job, tmp_path, monkeypatch):
    (tmp_path / "launch_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(tmp_path)
    return load_job(tiny_job)


def of_model(job, factory):
    return job.model_copy(update={"model": Model(factory=f"launch_models:{factory}")})


def of_data(job, **fields):
    return job.model_copy(update={"data": job.data.model_copy(update=fields)})


def test_a_job_leaves_a_complete_run_folder(job):
    run = heterps.train(job)
    assert run.folder.as_posix() == "runs/tiny-1"
    assert {path.name for path in run.folder.iterdir()} == {
        "job.yaml", "plan.json", "metrics.jsonl", "checkpoints", "profile.json", "summary.json", "report.html",
        "traces",
    }  # fmt: skip
    assert json.loads((run.folder / "summary.json").read_text()) == run.summary
    columns = job.data.columns.model_copy(update={"id_kinds": {"s": "integer", "t": "integer"}})  # found on the data
    assert load_job(run.folder / "job.yaml") == job.model_copy(
        update={"data": job.data.model_copy(update={"columns": columns})}
    )
    plan = load_plan(run.folder / "plan.json")
    assert plan.stages[0].count == job.num_threads
    assert run.summary["predicted_throughput"] == pytest.approx(plan.throughput, abs=0.1)


def test_a_job_file_is_as_good_as_a_job_and_runs_are_numbered(job, tiny_job):
    assert heterps.train(str(tiny_job)).folder.name == "tiny-1"
    assert heterps.train(tiny_job).folder.name == "tiny-2"
    assert heterps.train(job, resume=True).folder.name == "tiny-2"


def test_a_model_by_import_path_trains(job):
    assert heterps.train(of_model(job, "Mine")).summary["status"] == "completed"


def test_a_model_that_cannot_be_traced_trains_without_a_prediction(job):
    warnings = Warnings()
    run = heterps.train(of_model(job, "Branching"), observer=warnings)
    assert len(warnings.messages) == 1
    assert "no prediction for this run, because its model cannot be profiled" in warnings.messages[0]
    assert "launch_models.py:17" in warnings.messages[0]
    assert run.summary["status"] == "completed"
    assert (run.summary["predicted_throughput"], run.summary["predicted_usd"]) == (None, None)
    assert run.summary["measured_usd"] > 0
    assert not load_plan(run.folder / "plan.json").is_predicted
    assert "nothing is predicted" in (run.folder / "report.html").read_text()


def test_a_model_that_can_neither_be_traced_nor_run_is_an_error_of_the_model(job):
    with pytest.raises(ModelError, match="Broken failed on a batch of 16 samples after 0 steps: RuntimeError"):
        heterps.train(of_model(job, "Broken"))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda job: of_data(job, train="none.parquet"), DataError),
        (lambda job: of_data(job, test="none.parquet"), DataError),
        (lambda job: of_data(job, batch_size=201), DataError),
        (lambda job: job.model_copy(update={"profile": "none.json"}), ConfigError),
        (lambda job: of_model(job, "Nothing"), ModelError),
    ],
)
def test_a_job_that_cannot_run_leaves_no_folder(job, tmp_path, change, error):
    with pytest.raises(error):
        heterps.train(change(job))
    assert not (tmp_path / "runs").exists()


def test_resuming_another_job_is_refused_before_anything_is_measured(job, monkeypatch):
    folder = heterps.train(job).folder
    monkeypatch.setattr("heterps.launch.job.profile_job", lambda *args, **options: pytest.fail("profiled"))
    with pytest.raises(RunError, match=r"data.batch_size differ"):
        heterps.train(of_data(job, batch_size=8), folder, resume=True)


def test_a_given_profile_is_what_the_run_is_predicted_from(job, tmp_path):
    cost = Cost(compute_s=0.003, sync_s=9.0, input_s=0.002, alpha=0.5, beta=1.0)
    layers = tuple(LayerProfile(name=name, server_s=0.001, costs={"cpu": cost}) for name in ("one", "two"))
    profile = Profile(model="m", batch_size=16, layers=layers)
    profile.write(tmp_path / "profile.json")
    run = heterps.train(job.model_copy(update={"profile": "profile.json"}))
    # two layers of compute and servers, reading once, no network: 2 * 3 + 2 * 1 + 2 ms for 16 samples
    assert run.summary["predicted_throughput"] == pytest.approx(1600)
    assert run.summary["predicted_usd"] == pytest.approx(200 / 1600 / 3600 * 0.04)
    two_cores = inline_plan(profile, job.cluster, num_cores=2, samples=1600 * 3600)
    assert two_cores.throughput == pytest.approx(16 / (0.0045 + 0.002))
    assert two_cores.usd == pytest.approx(two_cores.hours * 2 * 0.04)


def test_a_profile_without_the_cpu_is_refused(job, tmp_path):
    cost = Cost(compute_s=0.003, sync_s=0.0, input_s=0.0, alpha=1.0, beta=1.0)
    Profile(model="m", batch_size=16, layers=(LayerProfile(name="one", costs={"v100": cost}),)).write("profile.json")
    with pytest.raises(ConfigError, match="no cost for every layer on 'cpu'"):
        heterps.train(job.model_copy(update={"profile": "profile.json"}))


def test_a_cluster_without_a_cpu_cannot_price_an_inline_run(job):
    gpus = heterps.Cluster.model_validate(
        {"resources": {"v100": {"device": "cuda", "usd_per_hour": 2.0, "limit": 1}}, "server_resource": "v100"}
    )
    with pytest.raises(ConfigError, match=r"the cluster has no resource with device: cpu. Add one"):
        heterps.train(job.model_copy(update={"cluster": gpus}))


def write_plan(*stages, servers=2, **fields):
    """plan.json of stages (first, last, resource, count), for a million samples at 1,000 samples/s.

    The job's model has five layers: embedding, cat, deep.linear1, deep.relu1, deep.logit.
    """
    plan = Plan(
        method="exact",
        stages=[Stage(first=a, last=b, resource=name, count=count) for a, b, name, count in stages],
        servers=PlannedServers(resource="cpu", count=servers),
        throughput=1000.0,
        hours=1e6 / 1000 / 3600,
        usd=12.5,
        bottleneck="embedding on cpu (compute)",
        **fields,
    )
    plan.write("plan.json")
    return plan


def by_plan(job):
    return job.model_copy(update={"plan": "plan.json"})


def test_a_run_by_a_plan_keeps_it_and_its_bill_and_predicts_this_machine(job):
    plan = write_plan((0, 0, "cpu", 12), (1, 4, "v100", 3))
    warnings = Warnings()
    run = heterps.train(by_plan(job), observer=warnings)
    assert warnings.messages == [
        "the inline launcher runs all 2 stages of the plan in this process; cpu×14, v100×3 are not rented. "
        "Follow the plan with --launcher local, and --emulate where it has units that are not here."
    ]
    assert load_plan(run.folder / "plan.json") == plan
    assert run.summary["plan"] == {"method": "exact", "throughput": 1000.0, "hours": plan.hours, "usd": 12.5}
    assert run.summary["predicted_throughput"] != 1000.0
    assert run.summary["predicted_usd"] < 1
    assert run.summary["measured_usd"] == pytest.approx(run.summary["seconds"] * 0.04 / 3600, abs=0.001 * 0.04 / 3600)
    page = (run.folder / "report.html").read_text()
    assert "3 × v100: layers 1 to 4" in page
    assert "cpu×14, v100×3 are not rented" in page
    assert "1,000 samples/s and 12.50 USD for 1,000,000 samples on its own units" in page
    assert "for an hour of one v100" not in page


def test_a_run_by_a_plan_trains_as_without_one_and_resumes_with_or_without_it(job):
    write_plan((0, 4, "v100", 1), servers=0)
    alone, planned = heterps.train(job), heterps.train(by_plan(job))
    assert planned.summary["log_loss"] == alone.summary["log_loss"]
    assert "plan" not in alone.summary
    assert "plan" not in heterps.train(job, planned.folder, resume=True).summary


@pytest.mark.parametrize(
    ("stages", "servers", "message"),
    [
        ([], 0, r"has 0 layers, and the model has 5"),
        ([(0, 3, "cpu", 1)], 0, r"has 4 layers, and the model has 5.*profile this one and plan again"),
        ([(0, 5, "cpu", 1)], 0, r"has 6 layers, and the model has 5"),
        ([(1, 4, "cpu", 1)], 0, r"stage 1 is of layers 1 to 4, but it must start at layer 0"),
        ([(0, 1, "cpu", 1), (3, 4, "v100", 1)], 0, r"stage 2 is of layers 3 to 4, but it must start at layer 2"),
        ([(0, 2, "cpu", 1), (2, 4, "v100", 1)], 0, r"stage 2 is of layers 2 to 4, but it must start at layer 3"),
        ([(0, 4, "cpu", 1), (5, 4, "v100", 1)], 0, r"stage 2 is of layers 5 to 4"),
        ([(0, 4, "a100", 1)], 0, r"rents 'a100', and the job's cluster has cpu, v100 only"),
        ([(0, 4, "v100", 33)], 0, r"rents 33 units of 'v100', and the job's cluster has a limit of 32"),
        ([(0, 4, "cpu", 480)], 1, r"rents 481 units of 'cpu'.*limit of 480"),
    ],
)
def test_a_plan_that_does_not_fit_the_job_is_refused_and_leaves_no_folder(job, tmp_path, stages, servers, message):
    write_plan(*stages, servers=servers)
    with pytest.raises(ConfigError, match=rf"^plan.json: .*{message}"):
        heterps.train(by_plan(job))
    assert not (tmp_path / "runs").exists()


LAYERS = ("embedding", "cat", "deep.linear1", "deep.relu1", "deep.logit")


def test_a_plan_of_another_model_with_as_many_layers_is_refused(job, tmp_path):
    write_plan((0, 4, "cpu", 1), model="nce", layers=(*LAYERS[:2], "hinge", *LAYERS[3:]))
    with pytest.raises(ConfigError, match=r"layer 2 is 'hinge' in the plan of nce, and 'deep.linear1' in the job's"):
        heterps.train(by_plan(job))
    assert not (tmp_path / "runs").exists()


def test_a_plan_with_servers_on_another_resource_than_the_clusters_is_refused(job):
    write_plan((0, 4, "cpu", 1), servers=2)
    gpus = job.cluster.model_copy(update={"server_resource": "v100"})
    with pytest.raises(ConfigError, match=r"the plan's servers run on 'cpu', and those of the job's cluster on 'v100'"):
        heterps.train(by_plan(job.model_copy(update={"cluster": gpus})))


def test_the_plan_that_a_run_leaves_is_one_for_its_own_job(job):
    left = heterps.train(job).folder / "plan.json"
    assert load_plan(left).layers == LAYERS
    assert "plan" in heterps.train(job.model_copy(update={"plan": str(left)})).summary


def test_a_plan_for_a_model_without_layers_is_refused(job):
    write_plan((0, 0, "cpu", 1))
    with pytest.raises(ConfigError, match=r"plan.json: a plan is of the layers of a model. Train this one without"):
        heterps.train(by_plan(of_model(job, "Branching")))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"method": "exact"}', '{"stages": 3}'])
def test_a_file_that_is_no_plan_is_refused(job, tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(ConfigError, match=r"plan\.json"):
        heterps.train(by_plan(job))


def test_the_trainer_serves_a_loop_of_ones_own(job):
    schema = job.data.columns

    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = heterps.nn.SparseEmbedding(schema.slots, 1)

        def forward(self, dense, slots):
            return self.embedding(slots).sum(dim=(1, 2))

    reader = Reader("train.parquet", schema, batch_size=16)
    with heterps.Trainer(Sum()) as trainer:
        losses = [trainer.step(batch)[0] for _ in range(4) for batch, _ in reader.read()]
        metrics = trainer.evaluate(batch for batch, _ in Reader("test.parquet", schema, batch_size=60).read())
    assert losses[-1] < losses[0]
    assert metrics["auc"] > 0.8, "the label is a function of one slot"
