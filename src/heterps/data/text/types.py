"""Find the types of columns of text: that of each sample, and the one that fits several samples.

null -- bool ---------------------+
  |---- integer -- number --------+-- string
  '---- date -- time -------------+             join(a, b) is the first type to the right of both
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_WHOLE, _PADDED = r"^[+-]?[0-9]+$", r"^[+-]?0[0-9]"
_BOOL = "^(true|false|True|False|TRUE|FALSE)$"
_DATE, _TIME = r"^\d{4}-\d\d-\d\d$", r"^\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?$"

INTEGER, NUMBER, STRING, DATE, TIME = pa.int64(), pa.float64(), pa.string(), pa.date32(), pa.timestamp("us")
NAMED = {"integer": INTEGER, "number": NUMBER, "string": STRING}
"""Types by the names that people give them in data.format.types."""


def type_of_texts(texts: Any) -> Any:
    """Return the Arrow type of an array of texts. Numbers with leading zeros, such as 00501, are strings."""
    texts = pc.unique(pc.utf8_trim_whitespace(texts.drop_null()))
    if not len(texts):
        return pa.null()
    if _all_match(texts, _WHOLE):
        if pc.any(pc.match_substring_regex(texts, _PADDED)).as_py():
            return STRING
        return next((kind for kind in (INTEGER, pa.uint64()) if fits(texts, kind)), STRING)
    if _all_match(texts, _BOOL):
        return pa.bool_()
    return type_of_dates(texts) or (NUMBER if fits(texts, NUMBER) else STRING)


def type_of_dates(texts: Any) -> Any:
    """Return the type of texts that are all dates, or dates with times, in ISO's form; else None."""
    for pattern, kind in ((_DATE, DATE), (_TIME, TIME)):
        if _all_match(texts, pattern) and fits(texts, kind):
            return kind
    return None


def fits(texts: Any, kind: Any) -> bool:
    """Tell whether all texts of an array are values of this type."""
    if pa.types.is_null(kind):
        return bool(texts.null_count == len(texts))
    try:
        texts.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def join(one: Any, other: Any) -> Any:
    """Return the narrowest type that holds the values of both types."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(join(one.value_type, other.value_type))
    both = {one, other}
    if both == {INTEGER, pa.uint64()}:
        return pa.uint64()
    if NUMBER in both and both <= {INTEGER, pa.uint64(), NUMBER}:
        return NUMBER
    return TIME if both == {DATE, TIME} else STRING


def join_all(found: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the types of columns of several samples. Columns come in the order in which they are seen."""

    def add(joined: dict[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
        return joined | {name: join(joined.get(name, pa.null()), kind) for name, kind in types.items()}

    return reduce(add, found, {})


def first_misfit(texts: Any, kind: Any) -> int | None:
    """Return the index of the first text that is no value of this type; None if all are."""
    texts = pc.utf8_trim_whitespace(texts)
    if fits(texts, kind):
        return None
    low, high = 0, len(texts)  # texts[:low] fit, texts[:high] do not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(texts.slice(0, middle), kind) else (low, middle)
    return low


def words_for(kind: Any) -> str:
    """Say in words what a value of this type is."""
    if pa.types.is_list(kind):
        return f"a list of which each item is {words_for(kind.value_type)}"
    words = {INTEGER: "a whole number", pa.uint64(): "a whole number", NUMBER: "a number", pa.bool_(): "true or false"}
    return words.get(kind) or {DATE: "a date", TIME: "a date with a time", pa.null(): "missing"}.get(kind, "a text")


def _all_match(texts: Any, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, pattern)).as_py())
