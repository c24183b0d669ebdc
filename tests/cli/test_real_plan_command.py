"""`heterps plan` with facts about machines, a policy, rows and a deadline."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_plan_command import CLUSTER, PROFILE, run

from heterps.ps.keys.placement import largest_share

SAMPLES = ("--samples", "1e9")
FACTS = """
resources:
  cpu:  {device: cpu,  usd_per_hour: 0.04, limit: 480, memory_gb: 4, port_gbps: 10}
  v100: {device: cuda, usd_per_hour: 3.06, limit: 32, memory_gb: 16, port_gbps: 3, startup_s: 180,
         spot: {usd_per_hour: 0.92, limit: 24, interruptions_per_hour: 0.05}}
machines:
  p3.16xlarge: {units: {v100: 8, cpu: 32}, usd_per_hour: 24.48, limit: 4, memory_gb: 488, port_gbps: 25}
server_resource: cpu
"""


@pytest.fixture
def plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command with a cluster, and returns its exit code and its JSON, or what it said."""
    profile = json.loads(json.dumps(PROFILE))
    profile["layers"][0] |= {"input_bytes": 850_000, "weight_bytes": 7_000_000, "output_bytes": 6_800_000}
    profile["layers"][1] |= {"input_bytes": 6_800_000, "weight_bytes": 2_500_000, "output_bytes": 650_000}

    def command(cluster: str, *words: str, **more: Any) -> tuple[int, Any]:
        (tmp_path / "profile.json").write_text(json.dumps(profile | more))
        (tmp_path / "cluster.yaml").write_text(cluster)
        files = (str(tmp_path / "profile.json"), str(tmp_path / "cluster.yaml"))
        code, out, err = run(capsys, *files, *SAMPLES, *words, "--json")
        return code, json.loads(out) if code == 0 else err

    return command


def test_without_facts_the_bill_is_that_of_the_paper_and_asking_for_it_gives_it_in_any_case(plan: Any) -> None:
    asked = ("--throughput", "20000")
    _, plain = plan(CLUSTER, *asked)
    _, paper = plan(CLUSTER, *asked, "--cost", "paper")
    assert "rented" not in plain
    assert {k: v for k, v in plain.items() if k != "search_s"} == {k: v for k, v in paper.items() if k != "search_s"}
    same_prices = FACTS.replace("3.06", "2.42")
    _, of_facts = plan(same_prices, *asked, "--cost", "paper")
    assert (of_facts["usd"], of_facts["stages"]) == (plain["usd"], plain["stages"])


def test_a_machine_is_paid_whole_and_its_cores_are_used(plan: Any) -> None:
    facts = yaml.safe_load(FACTS)
    del facts["resources"]["v100"]["spot"]
    facts["resources"]["cpu"]["limit"] = 12  # not enough for fc1
    _, made = plan(yaml.safe_dump(facts), "--throughput", "20000")
    assert made["rented"]["p3.16xlarge"] == 1
    cores = sum(stage["count"] for stage in made["stages"] if stage["resource"] == "cpu") + made["servers"]["count"]
    assert made["rented"].get("cpu", 0) == max(cores - 32, 0)
    hourly = 24.48 + 0.04 * made["rented"].get("cpu", 0)
    assert made["usd"] == pytest.approx(made["hours"] * hourly, rel=0.05), "start-up is paid, and little else"


def test_spot_units_share_a_stage_with_units_on_demand(plan: Any) -> None:
    facts = yaml.safe_load(FACTS)
    del facts["machines"]
    facts["resources"]["cpu"]["limit"] = 12  # not enough for fc1
    facts["resources"]["v100"] |= {"limit": 3, "port_gbps": 0.5}
    facts["resources"]["v100"]["spot"]["limit"] = 4
    _, made = plan(yaml.safe_dump(facts), "--throughput", "35000")
    needed = sum(stage["count"] for stage in made["stages"] if stage["resource"] == "v100")
    assert needed > 4, "neither the spot units nor the others are enough alone"
    assert made["rented"]["v100"] + made["rented"]["v100-spot"] == needed


def test_tables_must_fit_into_the_memory_of_servers_and_what_does_not_is_said_in_bytes(plan: Any) -> None:
    _, made = plan(FACTS, "--throughput", "20000", "--rows", "1e8")
    assert made["servers"]["count"] >= 1e8 * 160 / 4e9
    code, words = plan(FACTS, "--throughput", "20000", "--rows", "3e10")
    words = " ".join(words.split())
    assert code == 3
    assert "the tables take 4.8 TB in the end, the largest part on" in words
    least = int(words.partition("raise the limit of cpu to ")[2].partition(", or its")[0].replace(",", ""))
    assert least > 1.3 * 3e10 * 160 / 4e9, "the largest of so many parts is far above the average"
    code, words = plan(FACTS, "--throughput", "20000", "--rows", "1e12")
    assert code == 3
    assert "the limit of cpu to" not in words, "there are no more than 16,384 servers"


def least_for(servers: float) -> int:
    """Least number of servers that hold what `servers` would, if all had an equal part of it."""
    return next(n for n in itertools.count(math.ceil(servers)) if servers * largest_share(n) * 1.001 <= 1)


def test_servers_have_room_for_the_upper_end_of_what_the_growth_allows(plan: Any) -> None:
    table = {"name": "ids", "row_bytes": 100, "coefficient": 1.0, "exponent": 0.9, "samples": 200_000}
    _, sure = plan(FACTS, "--throughput", "20000", version=2, tables=[table])
    _, unsure = plan(FACTS, "--throughput", "20000", version=2, tables=[table | {"exponent_error": 0.2}])
    rows = 1e9**0.9
    assert sure["servers"]["count"] == least_for(rows * 100 / 4e9)
    most = rows * math.exp(1.645 * 0.2 * math.log(1e9 / 2e5))
    assert unsure["servers"]["count"] == least_for(most * 100 / 4e9)
    code, words = plan(FACTS, "--throughput", "20000", version=2, tables=[table | {"exponent_error": 3.0}])
    assert code == 3
    assert "in the end (12.6 GB are expected)" in " ".join(words.split())


def test_whole_steps_and_the_launcher_are_paid_but_not_in_the_bill_of_the_paper(plan: Any) -> None:
    facts = yaml.safe_load(FACTS)
    del facts["machines"], facts["resources"]["v100"]
    cores, asked = yaml.safe_dump(facts), ("--throughput", "20000", "--sync", "asp")
    launcher = {"free_fixed_s": 0.01, "free_divided_s": 0.5, "start_s": 360.0}
    known: dict[str, Any] = {"version": 2, "whole_steps": {"1": 1.5}, "overheads": {"local": launcher}}
    _, least = plan(cores, *asked)
    _, made = plan(cores, *asked, **known)
    count = made["stages"][0]["count"]
    assert len(made["stages"]) == 1
    layers = PROFILE["layers"]
    core_s = sum(layer["costs"]["cpu"]["compute_s"] for layer in layers) + layers[0]["costs"]["cpu"]["input_s"]
    assert made["throughput"] <= PROFILE["batch_size"] / ((1.5 * core_s + 0.5) / count + 0.01) * (1 + 1e-9)
    assert made["usd"] > least["usd"] * 1.5
    assert made["hours"] == pytest.approx(1e9 / made["throughput"] / 3600 + 0.1)
    paper = ("--throughput", "20000", "--cost", "paper")
    assert plan(cores, *paper, **known)[1]["usd"] == plan(cores, *paper)[1]["usd"]


def test_the_policy_of_the_job_that_was_profiled_is_the_default_of_a_real_bill(plan: Any) -> None:
    asked = ("--throughput", "20000")
    _, of_job = plan(FACTS, *asked, version=2, job={"sync": "ssp:3"})
    assert (of_job["sync"], of_job["usd"]) == ("ssp:3", plan(FACTS, *asked, "--sync", "ssp:3")[1]["usd"])
    assert plan(FACTS, *asked, "--sync", "bsp", version=2, job={"sync": "ssp:3"})[1]["sync"] == "bsp"
    assert plan(FACTS, *asked, "--lanes", "4,8", version=2, job={"sync": "bsp"})[1]["lanes"] in (4, 8)
    assert "sync" not in plan(CLUSTER, *asked, version=2, job={"sync": "ssp:3"})[1], "the paper's bill knows no policy"


def test_an_interruption_costs_what_the_policy_and_the_job_make_of_it(plan: Any) -> None:
    facts = yaml.safe_load(FACTS)
    del facts["machines"]
    facts["resources"]["v100"] |= {"limit": 0, "startup_s": 0}
    facts["resources"]["v100"]["spot"]["interruptions_per_hour"] = 2.0
    facts["resources"]["cpu"]["limit"] = 12

    def longer(*words: str, lost_s: float | None = None, **job: Any) -> float:
        facts["resources"]["v100"]["spot"]["lost_s"] = lost_s
        code, made = plan(yaml.safe_dump(facts), "--throughput", "20000", *words, version=2, job=job)
        assert code == 0, made
        work_s = 1e9 / made["throughput"]
        return math.log(made["hours"] * 3600 / work_s) / made["rented"]["v100-spot"] / 2 * 3600

    assert longer("--sync", "asp") == pytest.approx(1.3)
    assert longer("--sync", "bsp") == pytest.approx(15 + 7)
    assert longer("--sync", "asp", replacements=0) == pytest.approx(375), "back to a checkpoint"
    assert longer("--sync", "asp", lost_s=60.0) == pytest.approx(60)


def test_an_all_reduce_leaves_weights_out_of_what_servers_do(plan: Any) -> None:
    facts = yaml.safe_load(FACTS)
    del facts["machines"], facts["resources"]["v100"]
    facts["resources"]["cpu"] |= {"port_gbps": 0.5, "limit": 40}
    asked = (yaml.safe_dump(facts), "--throughput", "5000", "--sync", "bsp", "--lanes", "8")
    _, kept = plan(*asked)
    _, reduced = plan(*asked, "--dense", "all_reduce")
    assert reduced["usd"] < kept["usd"], "2.5 MB there and back for every worker"
    assert plan(*asked, version=2, job={"dense": "all_reduce"})[1]["usd"] == reduced["usd"]
    assert plan(*asked, "--dense", "servers", version=2, job={"dense": "all_reduce"})[1]["usd"] == kept["usd"]
    _, compared = plan(asked[0], "--throughput", "5000", "--sync", "any", "--dense", "all_reduce", "--lanes", "8")
    assert len(compared["variants"]) == 4
    code, said = plan(FACTS, "--throughput", "5000", "--sync", "asp", "--dense", "all_reduce")
    assert code == 2
    assert "only in step" in said


def test_policies_are_compared_and_lanes_are_part_of_a_plan_in_rounds(plan: Any) -> None:
    _, made = plan(FACTS, "--throughput", "20000", "--sync", "any")
    costs = {row["sync"]: row["usd"] for row in made["variants"]}
    assert list(costs) == ["bsp", "asp", "ssp:3", "dssp:3:12"]
    assert costs["asp"] < costs["bsp"], "workers that wait for each other are slower"
    assert made["usd"] == min(costs.values())
    _, rounds = plan(FACTS, "--throughput", "20000", "--sync", "bsp", "--lanes", "4,8")
    assert rounds["lanes"] in (4, 8)
    assert rounds["sync"] == "bsp"
    assert max(stage["count"] for stage in rounds["stages"]) <= rounds["lanes"]


def test_staleness_is_told_and_bounded(plan: Any) -> None:
    asked = ("--throughput", "20000", "--sync", "asp")
    _, free = plan(FACTS, *asked)
    _, bounded = plan(FACTS, *asked, "--max-staleness", str(free["lanes"] - 2))
    assert bounded["lanes"] < free["lanes"]
    assert bounded["usd"] >= free["usd"]
    code, words = plan(FACTS, "--throughput", "2e5", "--sync", "asp", "--max-staleness", "3")
    assert code == 3
    assert "Allow a larger --max-staleness" in words


def test_a_deadline_counts_the_start(plan: Any) -> None:
    facts = yaml.safe_load(FACTS)
    facts["resources"]["cpu"]["startup_s"] = 600
    _, made = plan(yaml.safe_dump(facts), "--deadline", "3")
    assert made["hours"] <= 3
    assert made["throughput"] > 1e9 / (3 * 3600 - 600) * 0.999


def test_a_plan_for_a_deadline_is_explained_with_the_floor_that_the_start_has_raised(plan: Any) -> None:
    facts = yaml.safe_load(FACTS)
    for resource in facts["resources"].values():
        resource["startup_s"] = 600
    del facts["machines"]
    started = yaml.safe_dump(facts)
    _, first = plan(started, "--throughput", "20000")
    deadline = 1e9 / first["throughput"] / 3600
    assert first["hours"] > deadline, "its start is not within the deadline"
    _, made = plan(started, "--deadline", str(deadline), "--explain")
    told = made["explain"]
    assert made["hours"] <= deadline * (1 + 1e-9)
    assert told["optimal_usd"] == pytest.approx(made["usd"]), "no plan that misses the deadline is called the cheapest"
    floor = next(one["before"] for one in told["sensitivities"] if one["of"] == "floor")
    assert floor > first["throughput"]
    assert told["cheaper"] is None or told["cheaper"]["plan"]["hours"] > deadline


def test_batch_sizes_are_compared(plan: Any) -> None:
    _, made = plan(FACTS, "--throughput", "20000", "--batch-size", "1024,4096")
    assert {row["batch_size"]: row["usd"] for row in made["variants"]}[made["batch_size"]] == made["usd"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--throughput", "20000", "--sync", "no"), "there is no policy 'no'"),
        (("--throughput", "20000", "--cost", "cheap"), "one of auto, paper, real"),
        (("--throughput", "20000", "--cost", "paper", "--sync", "bsp"), "knows no policy"),
        (("--throughput", "20000", "--lanes", "4"), "--lanes is for --sync bsp"),
        (("--throughput", "20000", "--sync", "bsp", "--lanes", "x"), "whole numbers"),
        (("--deadline", "0"), "above 0"),
        (("--throughput", "20000", "--max-staleness", "3"), "needs the policy of the job"),
        (("--throughput", "20000", "--max-staleness", "3", "--cost", "paper"), "knows no policy"),
        (
            ("--throughput", "20000", "--sync", "bsp", "--method", "greedy", "--provisioner", "newton"),
            "knows no rounds",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(plan: Any, words: tuple[str, ...], said: str) -> None:
    code, heard = plan(FACTS, *words)
    assert code == 2
    assert said in heard


def test_a_throughput_that_rounds_cannot_reach_is_told_with_the_highest_that_was_found(plan: Any) -> None:
    code, words = plan(FACTS, "--throughput", "1e9", "--sync", "bsp", "--lanes", "1,8")
    assert code == 3
    assert "The highest throughput that was found is" in words
    assert "--sync ssp:3" in words


def test_a_plan_in_rounds_has_a_frontier_and_is_explained(plan: Any) -> None:
    _, made = plan(FACTS, "--throughput", "20000", "--sync", "bsp", "--lanes", "1,4", "--frontier", "--explain")
    costs = [point["usd"] for point in made["frontier"]["plans"]]
    assert costs == sorted(costs)
    assert len(costs) > 2
    assert made["explain"]["stations"][-1]["name"] == "servers"


def test_a_pipeline_that_memory_cannot_keep_full_is_not_planned(plan: Any) -> None:
    asked = ("--throughput", "50000", "--sync", "asp")
    facts = yaml.safe_load(FACTS)
    del facts["machines"], facts["resources"]["v100"]["spot"]
    facts["resources"]["v100"] |= {"limit": 2, "memory_gb": 0.016}  # the embedding alone, with two batches
    facts["resources"]["cpu"]["memory_gb"] = 0.026  # fc1 alone, with two batches
    code, said = plan(yaml.safe_dump(facts), *asked)
    said = " ".join(str(said).split())
    assert code == 3, said
    assert "all layers in one stage take" in said
    needed = said.split("raise memory_gb of cpu to ")[1].split(",")[0]
    facts["resources"]["cpu"]["memory_gb"] = float(needed)
    code, made = plan(yaml.safe_dump(facts), *asked)
    assert code == 0, made
    assert [stage["resource"] for stage in made["stages"]] == ["cpu"], "what the message asked for is enough"


def test_rows_on_disk_need_fewer_servers_and_their_disks_are_paid(plan: Any) -> None:
    facts = yaml.safe_load(FACTS)
    asked = ("--throughput", "20000", "--rows", "1e9")
    _, in_memory = plan(yaml.safe_dump(facts), *asked)
    tiered = (*asked, "--rows-in-memory", "0.1")
    _, free = plan(yaml.safe_dump(facts), *tiered)
    assert in_memory["servers"]["count"] >= 1e9 * 160 / 4e9
    assert free["servers"]["count"] == least_for((1e8 * 160 + 9e8 * 12.5) / 4e9)
    facts["resources"]["cpu"]["disk_usd_per_gb_hour"] = 0.001
    _, paid = plan(yaml.safe_dump(facts), *tiered)
    hours = 1e9 / paid["throughput"] / 3600
    assert paid["usd"] - free["usd"] == pytest.approx(hours * 144 * 0.001, rel=0.01)
    facts["resources"]["cpu"]["disk_gb"] = 2
    _, many = plan(yaml.safe_dump(facts), *tiered)
    assert many["servers"]["count"] == least_for(144 / 2)
    facts["resources"]["cpu"]["disk_gb"] = 0.01
    code, words = plan(yaml.safe_dump(facts), *tiered)
    assert code == 3
    assert "the rows that are not in memory take 144 GB in the end" in " ".join(words.split())


def test_traffic_between_zones_is_billed_and_keeps_a_stage_in_the_zone_of_its_neighbours(plan: Any) -> None:
    facts = {
        "resources": {
            "cpu": {"usd_per_hour": 0.04, "limit": 12, "zone": "a"},  # not enough for fc1
            "v100": {"usd_per_hour": 2.42, "limit": 8, "zone": "b"},
            "v100-near": {"kind": "v100", "usd_per_hour": 2.6, "limit": 8, "zone": "a"},
        },
        "server_resource": "cpu",
    }

    def made(**more: Any) -> Any:
        code, found = plan(yaml.safe_dump(facts | more), "--throughput", "20000", "--cost", "real")
        assert code == 0, found
        return found

    free, dear = made(), made(egress_usd_per_gb=0.02)
    assert "v100" in {stage["resource"] for stage in free["stages"]}, "the cheaper ones are worth it if traffic is free"
    assert "egress_usd" not in free
    assert "v100" not in {stage["resource"] for stage in dear["stages"]}
    assert dear["egress_usd"] == 0
    del facts["resources"]["v100-near"]
    far = made(egress_usd_per_gb={"a": {"b": 0.02}, "b": {"a": 0.05}})
    assert far["egress_usd"] > 0
    assert far["usd"] - far["egress_usd"] == pytest.approx(free["usd"], rel=0.2), "the units cost what they did"
    one_way = made(egress_usd_per_gb={"a": {"b": 0.02}})
    assert one_way["egress_usd"] == pytest.approx(far["egress_usd"] * 2 / 7), "as many bytes go each way"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"egress_usd_per_gb": 0.02}, "'v100' has none: say the `zone` of every resource"),
        ({"egress_usd_per_gb": {"a": {"c": 1}}}, "has none: say the `zone`"),
        ({"machines": {"box": {"units": {"cpu": 1, "v100": 1}, "usd_per_hour": 1, "limit": 1}}}, "None, a"),
    ],
)
def test_zones_that_are_not_clear_are_refused(change: dict[str, Any], said: str, plan: Any) -> None:
    resources = {
        "cpu": {"usd_per_hour": 0.04, "limit": 12, "zone": "a"},
        "v100": {"usd_per_hour": 2.42, "limit": 8},
    }
    code, words = plan(yaml.safe_dump({"resources": resources, "server_resource": "cpu"} | change), "--throughput", "9")
    assert code == 2
    assert said in " ".join(words.split())
