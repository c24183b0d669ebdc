"""Variants of a planning problem, as options ask for them: several policies or batch sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from heterps.errors import ConfigError

if TYPE_CHECKING:
    from heterps.config import Cluster
    from heterps.planning.cost import Problem
    from heterps.profiling.profile import Profile


def variants(
    profile: Profile,
    cluster: Cluster,
    throughput: float | None,
    samples: float,
    epochs: float,
    *,
    batch_sizes: str | None,
    sync: str | None,
    cost: str,
    rows: float | None,
    rows_in_memory: float | None,
    deadline: float | None,
    lanes: str | None,
    max_staleness: int | None = None,
    dense: str | None = None,
) -> list[Problem]:
    """Make a problem for each policy and batch size that was asked for. Raises ConfigError."""
    from heterps.planning.api import CostModel, make_problem
    from heterps.planning.variants import ANY, POLICIES
    from heterps.profiling.profile import Dense

    if cost not in get_args(CostModel):
        raise ConfigError(f"--cost {cost}: it is one of {', '.join(get_args(CostModel))}.")
    if dense is not None and dense not in get_args(Dense):
        raise ConfigError(f"--dense {dense}: it is one of {', '.join(get_args(Dense))}.")
    if lanes is not None and sync != ANY and not _is_bsp(profile, sync):
        raise ConfigError("--lanes is for --sync bsp: other policies take whole batches.")
    chosen: Any = dense  # one of Dense
    sizes = whole_numbers("--batch-size", batch_sizes) or [profile.batch_size]
    policies: tuple[str | None, ...] = POLICIES if sync == ANY else (sync,)
    asked: dict[str, Any] = {
        "cost": cost, "rows": rows, "rows_in_memory": rows_in_memory, "deadline": deadline,
        "max_staleness": max_staleness,
    }  # fmt: skip
    return [
        make_problem(
            profile if size == profile.batch_size else profile.at_batch_size(size), cluster, throughput, samples,
            epochs, sync=policy, lanes=whole_numbers("--lanes", lanes) if _is_bsp(profile, policy) else None,
            dense=chosen if sync != ANY or _is_bsp(profile, policy) else None, **asked,
        )
        for policy in policies
        for size in sizes
    ]  # fmt: skip


def _is_bsp(profile: Profile, sync: str | None) -> bool:
    """Whether a policy, or without one that of the job that was profiled, works in rounds."""
    from heterps.config.policy_words import parse_policy

    word = sync or (profile.job.sync if profile.job is not None else None)
    return word is not None and parse_policy(word).in_rounds


def whole_numbers(option: str, text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} {text}: write whole numbers with commas between them, such as 4,8,16.") from None
    if min(numbers) < 1:
        what = "a batch has at least one sample" if option == "--batch-size" else "numbers must be at least 1"
        raise ConfigError(f"{option} {text}: {what}.")
    return numbers
