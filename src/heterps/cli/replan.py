"""`heterps replan`: move a running job to a better plan, when prices, limits or wishes have changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from heterps.cli.output import examples, print_json
from heterps.errors import ConfigError
from heterps.report.terminal.consoles import make_console

if TYPE_CHECKING:
    from heterps.launch.replanning import Proposal

T = TypeVar("T")

EXAMPLES = examples(
    "heterps replan runs/ctr-1 --price v100=1.20",
    "heterps replan runs/ctr-1 --limit cpu=64 --throughput 30000",
    "heterps replan runs/ctr-1 --cluster tonight.yaml --method rl",
    "heterps replan runs/ctr-1 --plan plan.json",
    note="Exit code 2: it cannot be, and the job goes on as it was; 3: there is no plan; 6: no job runs there; "
    "8: no answer.",
)


def replan(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that is running.")],
    cluster: Annotated[Path | None, typer.Option(help="Another cluster file; by default the job's cluster.")] = None,
    price: Annotated[
        list[str] | None, typer.Option(metavar="NAME=USD", help="USD per hour of a resource; may be given again.")
    ] = None,
    limit: Annotated[
        list[str] | None, typer.Option(metavar="NAME=UNITS", help="Limit of a resource; may be given again.")
    ] = None,
    throughput: Annotated[
        float | None, typer.Option(min=0, help="Least samples a second; by default those of the run's first plan.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(help="A method of `heterps plan`: exact, rl, changes, genetic, greedy, heuristic, cpu, gpu, ..."),
    ] = "exact",
    seed: Annotated[int, typer.Option(min=0, help="Seed of methods that draw at random.")] = 0,
    plan: Annotated[Path | None, typer.Option(help="Take this plan instead of making one.")] = None,
    profile: Annotated[Path | None, typer.Option(help="Plan from this profile; by default the job's.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Plan again for the samples that are left of a running job, and let it go on by a plan that is cheaper.

    The job is saved after the running step and goes on by the new plan from there, in the same process; nothing changes
    if its own plan is still the best. The plan and the cluster are kept in the run's folder. Both plans are billed by
    what the running stages are measured to do, where that is known.
    """
    from json import loads

    from heterps.cli.status import ask_status
    from heterps.launch.replanning import Wishes, ask_to_follow, propose
    from heterps.training.run.control import find

    wishes = Wishes(
        cluster,
        _pairs(price or (), "--price", float),
        _pairs(limit or (), "--limit", int),
        throughput,
        plan,
        profile,
        method,
        seed,
    )
    found = find(run)
    proposal = propose(found, loads(ask_status(found)), wishes)
    text = ""
    if proposal.is_better:
        path, told = ask_to_follow(found, proposal)
        text = f"{path}: {told}"
    _show(proposal, text, as_json=json)


def _show(proposal: Proposal, text: str, *, as_json: bool) -> None:
    from heterps.report.figures import rate, usd
    from heterps.report.terminal.plan_table import plans_table

    if as_json:
        print_json(_as_json(proposal, text))
        return
    console = make_console(soft_wrap=True)
    console.print(plans_table(proposal.old, proposal.new, is_chosen=bool(text)))
    console.print(f"For the {proposal.samples:,} samples that are left.")
    if proposal.measured is not None:
        console.print(f"What runs does {rate(proposal.measured)} samples/s now.")
    if proposal.by_profile is not None:
        old, new = (
            f"{rate(plan.throughput)} samples/s for {usd(plan.usd)}" if plan.is_predicted else "unknown"
            for plan in proposal.by_profile
        )
        by_profile = f"what runs {old}, the new plan {new}"
        console.print(f"Both bills rest on what is measured. By the profile alone: {by_profile}.")
    if proposal.cannot_stay:
        console.print(f"What runs cannot stay: {proposal.cannot_stay}.", markup=False)
    if proposal.left_out:
        names = ", ".join(proposal.left_out)
        console.print(f"Not planned with, because this machine has no such device: {names}.", markup=False)
    if not text:
        console.print("The plan that runs is still the best: nothing changes.")
        return
    if proposal.old.is_predicted and proposal.new.is_predicted:
        saved = proposal.old.usd - proposal.new.usd
        console.print(f"{usd(abs(saved))} {'less' if saved >= 0 else 'more'} than what runs, {proposal.basis}.")
    console.print(text, markup=False)


def _as_json(proposal: Proposal, text: str) -> dict[str, Any]:
    by_profile = proposal.by_profile and {
        word: {"throughput": plan.throughput, "hours": plan.hours, "usd": plan.usd}
        for word, plan in zip(("old", "new"), proposal.by_profile, strict=True)
    }
    return {
        "changed": bool(text),
        "old": proposal.old.model_dump(mode="json", exclude_none=True),
        "new": proposal.new.model_dump(mode="json", exclude_none=True),
        "samples": proposal.samples,
        "throughput": proposal.throughput,
        "measured_throughput": proposal.measured,
        "by_profile": by_profile,
        "cannot_stay": proposal.cannot_stay,
        "left_out": list(proposal.left_out),
    }


def _pairs(words: Sequence[str], option: str, number: Callable[[str], T]) -> dict[str, T]:
    """Parses the `v100=1.20` words of an option that may be given again."""

    pairs: dict[str, T] = {}
    for word in words:
        name, _, value = word.partition("=")
        try:
            pairs[name] = number(value)
        except ValueError:
            raise ConfigError(f"{option} {word}: write NAME=NUMBER, as in {option} v100=1") from None
    return pairs
