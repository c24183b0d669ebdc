"""The rows of an exported model: tables that never change, made of layers. score.py is where to begin reading.

    increment 3    [ 2  7* 9 ]          newest first; 7* is gone: it has no row, whatever is below
    increment 2    [ 7  11 ]
    full export    [ 1 2 3 5 7 8 9 11 12 ... ]

A key is looked up from the top. The rows of a sample's keys are then summed, averaged or laid side by side. This file
needs numpy and pyarrow alone, and is copied into every export beside score.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

if TYPE_CHECKING or __package__:
    from heterps.serving.score_inputs import Array, ScoreError, initial_values, per_sample
else:  # in an export
    from score_inputs import Array, ScoreError, initial_values, per_sample


NO_FIRSTS = np.empty(0, np.int64)
PREFIX_STEPS = 4


class RowLayer(NamedTuple):
    """Some rows of a table, sorted by key. Keys that are `gone` have no row, whatever older layers say."""

    keys: Array  # uint64 [n]
    values: Array  # [n, dim]: float32, float16, or int8
    scale: Array | None  # of int8 values: float32 [n], their factor
    gone: Array  # bool [n]
    firsts: Array = NO_FIRSTS  # int64: place of the first key of each prefix, of which there are about n

    def indexed(self) -> RowLayer:
        """Return this layer with the places of its prefixes, which `find` needs."""
        if len(self.firsts):
            return self
        bits = max(len(self.keys) - 1, 1).bit_length()
        prefixes = np.arange(1 << bits, dtype=np.uint64) << np.uint64(64 - bits)
        return self._replace(firsts=np.searchsorted(self.keys, prefixes))

    def find(self, keys: Array) -> Array:
        """Return the place of the first key that is not below each of these; the last where all are below.

        Keys are hashes, of which hardly more than a few have the same prefix: a step or two from the first of them
        finds most, and a binary search the others.
        """
        last = len(self.keys) - 1
        at = np.minimum(self.firsts[(keys >> np.uint64(65 - len(self.firsts).bit_length())).astype(np.int64)], last)
        left = np.flatnonzero(self.keys[at] < keys)
        for _ in range(PREFIX_STEPS):
            at[left] = np.minimum(at[left] + 1, last)
            left = left[self.keys[at[left]] < keys[left]]
        at[left] = np.minimum(np.searchsorted(self.keys, keys[left]), last)
        return at

    def take(self, at: Array) -> Array:
        """Return the values of some rows as float32."""
        values = self.values.take(at, axis=0, mode="clip").astype(np.float32, copy=False)
        return values if self.scale is None else values * self.scale[at, None]


class Table(NamedTuple):
    """A table: layers of rows, the newest first, and the initial values of keys that have no row."""

    dim: int
    seed: int
    init: Mapping[str, Any]
    layers: tuple[RowLayer, ...] = ()

    def pull(self, keys: Array) -> tuple[Array, Array]:
        """Return the values [n, dim] of keys, and which of them have no row [n]."""
        if len(self.layers) == 1:
            (layer,) = self.layers
            at = layer.find(keys)
            values, unknown = layer.take(at), (layer.keys[at] != keys) | layer.gone[at]
        else:
            values, unknown = self._from_top(keys)
        if unknown.any():
            values[unknown] = initial_values(keys[unknown], self.dim, self.seed, self.init)
        return values, unknown

    def _from_top(self, keys: Array) -> tuple[Array, Array]:
        """Look keys up in one layer after the other; those without a row have any values."""
        values = np.empty((len(keys), self.dim), np.float32)
        unknown = np.ones(len(keys), np.bool_)
        left = np.arange(len(keys))
        for layer in self.layers:
            at = layer.find(keys[left])
            hit = layer.keys[at] == keys[left]
            found, at, left = left[hit], at[hit], left[~hit]
            there = ~layer.gone[at]
            values[found[there]] = layer.take(at[there])
            unknown[found[there]] = False
        return values, unknown

    def under(self, layer: RowLayer, *, full: bool = False) -> Table:
        """Return this table with a newer layer; `full`: the layer alone.

        A layer is merged with the one below it when it is at least half as long, so that there are few of them and
        each row is copied few times.
        """
        layers = (layer,) if full else (layer, *self.layers)
        while len(layers) > 1 and 2 * len(layers[0].keys) >= len(layers[1].keys):
            layers = (_merged(layers[0], layers[1]), *layers[2:])
        if len(layers) == 1 and layers[0].gone.any():
            keys, values, scale, gone, _ = layers[0]
            layers = (RowLayer(keys[~gone], values[~gone], None if scale is None else scale[~gone], gone[~gone]),)
        return self._replace(layers=tuple(layer.indexed() for layer in layers if len(layer.keys)))


def _merged(new: RowLayer, old: RowLayer) -> RowLayer:
    kept = np.ones(len(old.keys), np.bool_)
    if len(new.keys):
        kept = new.keys[np.minimum(np.searchsorted(new.keys, old.keys), len(new.keys) - 1)] != old.keys
    keys = np.concatenate([new.keys, old.keys[kept]])
    order = np.argsort(keys, kind="stable")
    gone = np.concatenate([new.gone, old.gone[kept]])[order]
    if new.values.dtype == old.values.dtype:
        scales = None if new.scale is None or old.scale is None else [new.scale, old.scale[kept]]
        scale = None if scales is None else np.concatenate(scales)[order]
        return RowLayer(keys[order], np.concatenate([new.values, old.values[kept]])[order], scale, gone)
    values = np.concatenate([new.take(np.arange(len(new.keys))), old.take(np.flatnonzero(kept))])
    return RowLayer(keys[order], values[order], None, gone)


def make_layer(dim: int, keys: Any, values: Any, gone: Any = ()) -> RowLayer:
    """Return a layer of rows in any order and of deleted keys."""
    gone, keys, values = np.asarray(gone, np.uint64), np.asarray(keys, np.uint64), np.asarray(values, np.float32)
    if values.shape != (len(keys), dim):
        raise ScoreError(f"rows have the shape {list(values.shape)}, but {len(keys)} keys of {dim} values were given.")
    both = np.concatenate([keys, gone])
    order = np.argsort(both, kind="stable")
    values = np.concatenate([values, np.zeros((len(gone), dim), np.float32)])
    return RowLayer(both[order], values[order], None, (np.arange(len(both)) >= len(keys))[order])


Keys = tuple[Array, Array | None]  # of one slot: all keys, and how many each sample has; None: one of each


def pooled_rows(
    embedding: Mapping[str, Any], keys: Sequence[Keys], tables: Mapping[str, Table], unknown: Array
) -> list[Array]:
    """Return the rows of each sample's keys, summed or averaged for each slot [n, slots, dim]; count unknown keys."""
    if len(embedding["tables"]) == 1 and all(lengths is None for _, lengths in keys):  # one id of each slot
        flat = np.stack([of_slot for of_slot, _ in keys], axis=1)
        values, strange = tables[embedding["tables"][0]].pull(flat.reshape(-1))
        unknown += strange.reshape(flat.shape).sum(axis=1)
        return [values.reshape(*flat.shape, embedding["dim"])]
    groups = [keys] if len(embedding["tables"]) == 1 else [[one] for one in keys]
    pooled, slots = [], iter(embedding["slots"])
    for table, group in zip(embedding["tables"], groups, strict=True):
        values, strange = tables[table].pull(np.concatenate([of_slot for of_slot, _ in group]))
        end = 0
        for (of_slot, lengths), slot in zip(group, slots, strict=False):
            if embedding["pooling"] == "none" and lengths is not None and (lengths != 1).any():
                raise ScoreError(f"column {slot}: the model takes exactly one id of each sample, not lists of others.")
            part, end = slice(end, end + len(of_slot)), end + len(of_slot)
            is_mean = embedding["pooling"] == "mean"
            pooled.append(values[part] if lengths is None else _summed(values[part], lengths, is_mean))
            unknown += per_sample(strange[part], lengths)
    return [np.stack(pooled, axis=1)]


def _summed(values: Array, lengths: Array, is_mean: bool) -> Array:
    out = np.zeros((len(lengths), values.shape[1]), np.float32)
    there = lengths > 0
    if there.any():
        out[there] = np.add.reduceat(values, (np.cumsum(lengths) - lengths)[there], axis=0)
    return out / np.maximum(lengths, 1)[:, None].astype(np.float32) if is_mean else out


def padded_rows(
    embedding: Mapping[str, Any], keys: Sequence[Keys], tables: Mapping[str, Table], unknown: Array
) -> list[Array]:
    """Return the rows of each sample's list, padded in front [n, places, dim], and the mask of places."""
    ((all_keys, lengths),) = keys
    lengths = np.ones(len(all_keys), np.int64) if lengths is None else lengths
    places = embedding["window"]["max_length"]
    cut, ends = np.minimum(lengths, places), np.cumsum(lengths)
    firsts = ends - cut if embedding["window"]["newest"] else ends - lengths
    pad = (places - cut)[:, None]
    mask = np.arange(places) >= pad
    looked_up = all_keys[(firsts[:, None] + np.arange(places) - pad)[mask]]
    rows = np.zeros((len(lengths), places, embedding["dim"]), np.float32)
    rows[mask], strange = tables[embedding["tables"][0]].pull(looked_up)
    unknown += per_sample(strange, cut)
    return [rows, mask]


def read_rows(path: Path, tables: Mapping[str, Table]) -> dict[str, RowLayer]:
    """Read rows.parquet: for each table a layer, in which keys without values are gone.

    A row group, which is of one table, is in memory beside the layers.
    """
    file = pq.ParquetFile(path)
    groups: dict[str, list[int]] = {}
    for group in range(file.num_row_groups):
        groups.setdefault(file.read_row_group(group, columns=["table"])["table"][0].as_py(), []).append(group)
    return {name: _read_layer(file, found, tables[name].dim) for name, found in groups.items()}


def _read_layer(file: pq.ParquetFile, groups: Sequence[int], dim: int) -> RowLayer:
    num = sum(file.metadata.row_group(group).num_rows for group in groups)
    kind = file.schema_arrow.field("values").type.value_type.to_pandas_dtype()
    has_scale = "scale" in file.schema_arrow.names
    scale = np.empty(num, np.float32) if has_scale else None
    layer = RowLayer(np.empty(num, np.uint64), np.zeros((num, dim), kind), scale, np.empty(num, np.bool_))
    end = 0
    for group in groups:
        rows = file.read_row_group(group)
        part, end = slice(end, end + len(rows)), end + len(rows)
        column = rows["values"].combine_chunks()
        layer.gone[part] = column.is_null().to_numpy(zero_copy_only=False)
        layer.values[part][~layer.gone[part]] = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, dim)
        layer.keys[part] = rows["key"].to_numpy()
        if scale is not None:
            scale[part] = rows["scale"].fill_null(0).to_numpy()
    return layer
