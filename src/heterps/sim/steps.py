"""What a server may do with a gradient beside applying it: pure functions from gradients to gradients.

mean_of      the gradient of several batches at once: a round of BSP, a batch in pieces
sum_of       those of a round added up, as if each were applied with the whole learning rate
compensate   DC-ASGD (Zheng et al., ICML 2017): g + strength * g * g * (w_now - w_then), a first-order guess of what the
             gradient would be at the weights as they are now; g*g stands for the diagonal of the Hessian
damping      the staleness-aware learning rate (Zhang et al., IJCAI 2016): 1 / staleness, and 1 where nothing is stale
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from heterps.arrays import FloatArray
from heterps.lookups import RowGradients
from heterps.ps.keys.dedup import Lookup, make_lookup, sum_rows
from heterps.training.model.trainer import Gradients


def mean_of(gradients: Sequence[Gradients]) -> Gradients:
    """The gradients of the mean loss over all samples of all batches: each counts by its samples."""
    if len(gradients) == 1:
        return gradients[0]
    samples = sum(one.num_samples for one in gradients)
    shares = [np.float32(one.num_samples / samples) for one in gradients]
    dense = {table: np.zeros_like(grads) for table, grads in gradients[0].dense.items()}
    for share, one in zip(shares, gradients, strict=True):
        for table, grads in one.dense.items():
            dense[table] += share * grads
    tables = dict.fromkeys(rows.table for one in gradients for rows in one.rows)
    return Gradients(
        loss=float(sum(share * one.loss for share, one in zip(shares, gradients, strict=True))),
        logits=np.concatenate([one.logits for one in gradients]),
        num_samples=samples,
        rows=[_joined(table, gradients, shares) for table in tables],
        dense=dense,
    )


def sum_of(gradients: Sequence[Gradients]) -> Gradients:
    """The sum of the gradients: their mean times their number. The loss stays the mean."""
    mean, number = mean_of(gradients), np.float32(len(gradients))
    rows = [part._replace(grads=number * part.grads) for part in mean.rows]
    return mean._replace(rows=rows, dense={t: number * grads for t, grads in mean.dense.items()})


def _joined(table: str, gradients: Sequence[Gradients], shares: Sequence[np.float32]) -> RowGradients:
    parts = [
        (rows.lookup, share * rows.grads)
        for share, one in zip(shares, gradients, strict=True)
        for rows in one.rows
        if rows.table == table
    ]
    keys = np.concatenate([lookup.unique[lookup.inverse] for lookup, _ in parts])
    lookup = make_lookup(keys, len(parts[0][0].bounds) - 1)
    return RowGradients(table, lookup, np.concatenate([grads for _, grads in parts]))


def compensate(
    gradients: Gradients,
    strength: float,
    *,
    dense: Mapping[str, tuple[FloatArray, FloatArray]],
    rows: Mapping[str, tuple[FloatArray, FloatArray]],
) -> Gradients:
    """The gradients corrected, to first order, for newer weights, given (old, new) weights by table, of unique rows."""
    corrected = []
    for part in gradients.rows:
        summed = np.empty((len(part.lookup.unique), part.grads.shape[1]), np.float32)
        sum_rows(part.grads, part.lookup.sources, part.lookup.starts, 0, len(summed), summed)
        lookup = _one_each(part.lookup)
        corrected.append(RowGradients(part.table, lookup, _compensated(summed, strength, *rows[part.table])))
    of_tables = {table: _compensated(grads, strength, *dense[table]) for table, grads in gradients.dense.items()}
    return gradients._replace(rows=corrected, dense=of_tables)


def _compensated(grads: FloatArray, strength: float, then: FloatArray, now: FloatArray) -> FloatArray:
    return grads + np.float32(strength) * grads * grads * (now - then)


def _one_each(lookup: Lookup) -> Lookup:
    """A lookup of the same unique keys in which each key comes once."""
    each = np.arange(len(lookup.unique), dtype=np.int32)
    return Lookup(lookup.unique, lookup.bounds, each, each, np.arange(len(each) + 1, dtype=np.int32))


def damping(staleness: int) -> float:
    """The factor on the learning rate for a gradient that missed that many updates."""
    return 1.0 / max(staleness, 1)
