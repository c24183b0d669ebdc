"""The tables and the plot of what run.py found: python benchmarks/schedulers/show.py results.json [more.json ...]"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from panels import Panel, draw

Result = dict[str, Any]
LEARNED = ("rl", "rl-scratch", "rl-rnn", "rl-paper", "changes", "genetic", "bayes")


def gap(result: Result, optimum: float) -> float:
    return result["usd"] / optimum - 1 if result["usd"] is not None else math.inf


def evaluations_to(result: Result, usd: float) -> float:
    """Bills until a plan was as cheap as `usd`; infinite where none was."""
    return next((p["evaluations"] for p in result["trace"] if p["usd"] <= usd * (1 + 1e-9)), math.inf)


class Results:
    def __init__(self, results: Sequence[Result]) -> None:
        self._results = results
        self.models = list(dict.fromkeys(r["model"] for r in results))
        self.methods = list(dict.fromkeys(r["method"] for r in results))
        self.resources = sorted({r["resources"] for r in results})

    def of(self, model: str, resources: int, method: str) -> list[Result]:
        return [r for r in self._results if (r["model"], r["resources"], r["method"]) == (model, resources, method)]

    def optimum(self, model: str, resources: int) -> float:
        exact = self.of(model, resources, "exact")[0]
        assert exact["proven"], f"no proven optimum for {model} on {resources} resources"
        return float(exact["usd"])

    def gaps(self, model: str, resources: int, method: str) -> list[float]:
        optimum = self.optimum(model, resources)
        return [gap(result, optimum) for result in self.of(model, resources, method)]


def percent(value: float) -> str:
    return "none" if math.isinf(value) else f"{value * 100:.1f}"


def show_gaps(results: Results) -> None:
    for model in results.models:
        print(f"\n**{model}**: cost over the optimum, %; median over the seeds (worst in brackets, where it differs)\n")
        print("| method |", " | ".join(f"{n} resources" for n in results.resources), "|")
        print("|---|" + "---:|" * len(results.resources))
        for method in results.methods:
            cells = []
            for num in results.resources:
                gaps = results.gaps(model, num, method)
                median, worst = percent(statistics.median(gaps)), percent(max(gaps))
                cells.append(median if median == worst else f"{median} ({worst})")
            print(f"| {method} |", " | ".join(cells), "|")


def show_effort(results: Results) -> None:
    print("\nProcessor seconds and bills of a search, over all models and numbers of resources\n")
    print("| method | median s | most s | median bills | most bills |\n|---|---:|---:|---:|---:|")
    for method in results.methods:
        all_of = [
            r for m in results.models for n in results.resources for r in results.of(m, n, method) if "seconds" in r
        ]
        if all_of:
            seconds, bills = [r["seconds"] for r in all_of], [r["evaluations"] for r in all_of]
            print(
                f"| {method} | {statistics.median(seconds):.3f} | {max(seconds):.3f} | "
                f"{statistics.median(bills):,.0f} | {max(bills):,} |"
            )


def show_bills_to_gap(results: Results) -> None:
    """Bills until a method has a plan as cheap as the median one of rl; never, where most seeds have none."""
    print("\nBills until a plan is as cheap as the median of `rl`, median over the seeds\n")
    others = [method for method in LEARNED if method in results.methods]
    print("| model | resources | gap of rl, % |", " | ".join(others), "|")
    print("|---|---:|---:|" + "---:|" * len(others))
    for model in results.models:
        for num in results.resources:
            usd = statistics.median(r["usd"] or math.inf for r in results.of(model, num, "rl"))
            cells = []
            for method in others:
                bills = statistics.median(evaluations_to(r, usd) for r in results.of(model, num, method))
                cells.append("never" if math.isinf(bills) else f"{bills:,.0f}")
            reached = usd / results.optimum(model, num) - 1
            print(f"| {model} | {num} | {percent(reached)} |", " | ".join(cells), "|")


def make_panels(results: Results) -> list[Panel]:
    shown = [method for method in results.methods if method not in ("exact", "brute")]
    return [
        Panel(
            model,
            results.resources,
            "resources",
            results.resources,
            {m: [statistics.median(results.gaps(model, n, m)) for n in results.resources] for m in shown},
        )
        for model in results.models
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--svg", type=Path, help="where the plot goes")
    arguments = parser.parse_args()
    results = Results([r for path in arguments.results for r in json.loads(path.read_text(encoding="utf-8"))])
    show_gaps(results)
    show_effort(results)
    show_bills_to_gap(results)
    if arguments.svg is not None:
        arguments.svg.write_text(draw(make_panels(results)), encoding="utf-8")


if __name__ == "__main__":
    main()
