"""Make Slots of a batch by hand, as in serving: the same keys as those of a column of a file with these ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from heterps.arrays import KeyArray, OffsetArray
from heterps.data.arrow import integer_ids, without_dictionary
from heterps.data.batch import Slots
from heterps.data.columns import id_kind, is_list
from heterps.data.decode import key_column
from heterps.data.kernels import place_bags
from heterps.data.keys import null_key
from heterps.errors import DataError


def bags(ids: Mapping[str, Sequence[Any]], same_ids: Mapping[str, str] | None = None) -> Slots:
    """Make the Slots of n samples from a list of n ids for each slot; an item may itself be a list of ids, a bag.

        heterps.bags({"user": ["ann", "bob"], "genres": [["drama", "war"], []]})

    Ids are integers or strings, all of one kind in a slot, and None where one is missing. `same_ids` is the schema's:
    slots that hold the ids of another slot.
    """
    if not isinstance(ids, Mapping) or not ids:
        raise DataError('bags are made of ids by slot, as in heterps.bags({"user": [7, 8], "tags": [["a", "b"], []]}).')
    owners = same_ids or {}
    columns = {name: _bags_of(name, values, owners.get(name, name)) for name, values in ids.items()}
    sizes = {name: len(starts) for name, (_, starts, _) in columns.items()}
    if len(set(sizes.values())) > 1:
        shown = ", ".join(f"{name} has {size}" for name, size in sizes.items())
        raise DataError(f"all slots must have ids for the same number of samples, but {shown}.")
    lengths = np.stack([length for _, _, length in columns.values()], axis=1)
    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths.reshape(-1), out=offsets[1:])
    keys = np.empty(offsets[-1], np.uint64)
    for s, (of_slot, starts, _) in enumerate(columns.values()):
        place_bags(of_slot, starts, s, len(columns), offsets, keys)
    return Slots(tuple(columns), keys, None if (lengths == 1).all() else offsets)


def _bags_of(name: str, values: Any, owner: str) -> tuple[KeyArray, OffsetArray, OffsetArray]:
    """Return the keys of one slot, and where the bag of each sample starts and how long it is."""
    try:
        plain = values.tolist() if hasattr(values, "tolist") else values  # of arrays and tensors of any shape
        column = without_dictionary(pa.array(plain))
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise DataError(
            f"slot {name}: {str(error).splitlines()[0]}. Write ids of one kind, or lists of them."
        ) from None
    single = column.flatten() if is_list(column.type) else column
    if id_kind(column.type) is None or integer_ids(single)[1] is not None:
        raise DataError(f"slot {name}: ids must be integers or strings, or lists of them, but are {column.type}.")
    keys = np.append(key_column(single, owner), null_key(owner))  # the last is the one key of a missing list
    if not is_list(column.type):
        return keys, np.arange(len(column)), np.ones(len(column), np.int64)
    found = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    absent = column.is_null().to_numpy(zero_copy_only=False)
    starts = np.where(absent, len(single), np.cumsum(found) - found)
    return keys, starts, np.where(absent, 1, found)
