"""Batches fitted to workers (LB-BSP): as many samples of a round for each as it computes while the others do theirs."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def fitted_sizes(seconds: Sequence[float], num_samples: int) -> list[int]:
    """Samples of each worker, at least one, where worker i takes `seconds[i]` for an equal batch.

    Each sample goes to the worker that would finish it first, so that no other division finishes sooner.
    """
    sizes = [1] * len(seconds)
    done = [(2 * s, i) for i, s in enumerate(seconds)]
    heapq.heapify(done)
    for _ in range(num_samples - len(seconds)):
        _, soonest = done[0]
        sizes[soonest] += 1
        heapq.heapreplace(done, ((sizes[soonest] + 1) * seconds[soonest], soonest))
    return sizes
