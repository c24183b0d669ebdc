"""Which columns a model reads, by the manifest of its export, and what GET /model says of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from heterps.serving.payload import Columns

NUMBER = "number"
ID_TYPES = {"integer id": pa.int64(), "string id": pa.string()}


def columns_of(manifest: Mapping[str, Any]) -> Columns:
    """Return the columns that requests to a model must have."""
    kinds = kinds_of(manifest["inputs"])
    wanted = {name: kind == NUMBER or kind.endswith("numbers") for name, kind in kinds.items()}
    types = {name: ID_TYPES[kind] for name, kind in kinds.items() if kind in ID_TYPES}
    return Columns(wanted, manifest["inputs"]["not_read"], types)


def describe(manifest: Mapping[str, Any], version: str) -> dict[str, Any]:
    """Return what GET /model says: columns, outputs, the version of the export and the one in use."""
    return {
        "run": manifest["run"],
        "version": version,
        "export": manifest["version"],
        "columns": [{"name": name, "type": kind} for name, kind in kinds_of(manifest["inputs"]).items()],
        "outputs": [{"name": item["name"], "width": item["width"]} for item in manifest["graphs"]["score"]["outputs"]],
    }


def kinds_of(inputs: Mapping[str, Any]) -> dict[str, str]:
    """Return the columns of the data that a model reads, in their order, and in words what each holds.

    A column that is read in several ways, as the price and as its bucket, is what the last way needs which is not a
    plain number: other ways take numbers too.
    """
    kinds: dict[str, str] = {}
    for name, kind in _all_kinds(inputs):
        if kinds.get(name, NUMBER) == NUMBER:
            kinds[name] = kind
    return kinds


def _all_kinds(inputs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for item in inputs["dense"]:
        plain = NUMBER if item["width"] is None else f"list of {item['width']} numbers"
        yield from _sources(inputs, item["name"], plain)
    for slot in inputs["slots"]:
        kind = inputs["id_kinds"].get(slot["name"])
        yield from _sources(inputs, slot["name"], "id" if kind in (None, "null") else f"{kind} id")


def _sources(inputs: Mapping[str, Any], name: str, plain: str) -> Iterator[tuple[str, str]]:
    """Yield the columns from which a column or feature is made, and what they hold; `plain` if it is used as it is."""
    feature = inputs["features"].get(name)
    if feature is None:
        yield name, plain
    elif feature["cross"]:
        for part in feature["cross"]:
            kind = inputs["id_kinds"].get(part)
            yield from _sources(inputs, part, "id" if kind in (None, "null") else f"{kind} id")
    else:
        steps = feature["steps"]
        made_of = plain if not steps else "date" if steps[0]["kind"] == "date" else NUMBER
        yield feature.get("column") or name, made_of
