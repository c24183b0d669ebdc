"""The dashboard for Grafana shows every figure that Prometheus is told, and none that it is not."""

from __future__ import annotations

import json
import re
from pathlib import Path

from heterps.report import prometheus, prometheus_servers

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD = DOCS / "monitoring/grafana.json"


def test_the_dashboard_asks_for_exactly_the_names_that_are_told() -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    asked = " ".join(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    assert set(re.findall(r"heterps_\w+", asked)) == {*prometheus.NAMES, *prometheus_servers.NAMES}
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {"${source}"}, "no server of ours in it"


def test_the_page_about_the_browser_names_every_figure_of_a_job() -> None:
    page = (DOCS / "how-to/ui.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(heterps_\w+)`", page)) == set(prometheus.NAMES)
