"""`heterps prices`: the list, the cluster beside it, the JSON."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from heterps.catalogue import CATALOGUE
from heterps.cli import main
from heterps.offers import OFFERS
from heterps.report.terminal.price_table import price_table, usd

CLUSTER = """
resources:
  cpu: {limit: 480}
  v100: {usd_per_hour: 2.10, limit: 32}
  v100-spot: {limit: 8}
  house: {device: cuda, usd_per_hour: 0.5, limit: 1}
server_resource: cpu
"""


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    return str(path)


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["prices", *words])
    return int(end.value.code or 0)


def test_every_device_is_listed_with_both_its_prices(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json") == 0
    rows = {row["device"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == {"cpu", *CATALOGUE}
    assert rows["v100"]["usd_per_hour"] == 2.42
    assert rows["v100"]["spot_usd_per_hour"] == OFFERS["v100-spot"].usd_per_hour
    assert rows["v100"]["peak_flops"] == 15.7e12
    assert rows["kunlun"]["spot_usd_per_hour"] is None
    assert rows["cpu"]["peak_flops"] is None, "a core of this machine is measured"


def test_a_cluster_stands_beside_list_prices(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--cluster", cluster, "--json") == 0
    rows = {row["resource"]: row for row in json.loads(capsys.readouterr().out)}
    assert [name for name, row in rows.items() if row["overridden"]] == ["v100"]
    assert (rows["v100"]["usd_per_hour"], rows["v100"]["list_usd_per_hour"]) == (2.10, 2.42)
    assert rows["v100-spot"]["limit"] == 8
    assert rows["house"]["offer"] is None
    assert run("--cluster", cluster) == 0
    shown = capsys.readouterr().out
    assert "2.10 *" in shown
    assert "* not the list price" in shown
    assert "no offer of the catalogue" in shown


def test_facts_spot_units_and_machines_of_a_cluster_are_shown_within_the_screen(
    cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = CLUSTER.replace("{limit: 480}", "{limit: 480, memory_gb: 4, port_gbps: 10, billing_s: 60}")
    spot = "spot: {usd_per_hour: 0.92, limit: 24, interruptions_per_hour: 0.05}"
    facts = facts.replace("limit: 32}", f"limit: 32, startup_s: 180, {spot}}}")
    Path(cluster).write_text(facts + "machines: {p3.16xlarge: {limit: 4, units: {v100: 8, cpu: 32}}}\n")
    assert run("--cluster", cluster) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "Spot units of v100: 24 at 0.92 USD/h, taken back 0.05 times an hour." in " ".join(shown.split())
    told = "Machine p3.16xlarge: 8 v100 + 32 cpu, 4 at 24.48 USD/h, 488 GB, 25 Gb/s, 97 s to start."
    assert told in " ".join(shown.split()), "what the file does not say is that of the catalogue"
    assert "180" in shown
    assert run("--cluster", cluster, "--json") == 0
    rows = {row["resource"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["cpu"]["memory_gb"], rows["cpu"]["port_gbps"], rows["cpu"]["billing_s"]) == (4, 10, 60)
    assert rows["v100"]["spot"]["interruptions_per_hour"] == 0.05
    assert rows["v100"]["machines"]["p3.16xlarge"]["minimum_s"] == 60
    assert run("--json") == 0
    listed = {row["device"]: row for row in json.loads(capsys.readouterr().out)}
    assert listed["a100"]["machine_usd_per_hour"] == 21.957642
    assert listed["graviton3"]["interruptions_per_hour"] < listed["v100"]["interruptions_per_hour"]
    assert {row["billing_s"] for row in listed.values()} == {0.0, 1.0}


def test_a_bad_cluster_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--cluster", "missing.yaml") == 2
    assert "there is no such cluster file" in capsys.readouterr().err


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_keeps_within_the_screen_and_cuts_no_name(width: int) -> None:
    console = Console(width=width, file=StringIO())
    console.print(price_table(width))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, shown.splitlines())) <= width
    assert all(f"{name} " in shown for name in CATALOGUE)


def test_prices_of_cores_keep_their_digits() -> None:
    assert [usd(price) for price in (2.42, 0.04, 0.0125, 0.0, None)] == ["2.42", "0.0400", "0.0125", "0.00", "-"]


def test_zones_and_what_traffic_between_them_costs_are_shown(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    zoned = CLUSTER.replace("limit: 480", "limit: 480, zone: a").replace("limit: 32", "limit: 32, zone: b")
    zoned = zoned.replace("limit: 8", "limit: 8, zone: b").replace("limit: 1}", "limit: 1, zone: a}")
    Path(cluster).write_text(zoned + "egress_usd_per_gb: {a: {b: 0.02}, b: {a: 0.05}}\n")
    assert run("--cluster", cluster) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Traffic that leaves a zone costs 0.0200 from a to b, 0.0500 from b to a USD per GB." in shown
    assert run("--cluster", cluster, "--json") == 0
    assert [row["zone"] for row in json.loads(capsys.readouterr().out)] == ["a", "b", "b", "a"]
    assert run() == 0
    assert "Traffic costs 0.0200 USD per GB to another zone" in " ".join(capsys.readouterr().out.split())
