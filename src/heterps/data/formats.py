"""The file formats of data sets, by the suffix of a file's name or by the kind that a job names."""

from __future__ import annotations

from importlib import import_module

from heterps.config.format import FORMAT_KINDS
from heterps.data.file import DataFile
from heterps.data.parquet import ParquetFile
from heterps.data.text.file import COMPRESSIONS
from heterps.errors import ConfigError
from heterps.plugins import Registry


def _imported(path: str) -> type[DataFile]:
    module, _, name = path.partition(":")
    format: type[DataFile] = getattr(import_module(module), name)
    return format


KINDS = {kind: _imported(path) for kind, path in FORMAT_KINDS.items()}
"""Formats by the names that `data.format.kind` has for them."""
FORMATS: Registry[type[DataFile]] = Registry(
    "data format for files that end in", {suffix: format for format in KINDS.values() for suffix in format.suffixes}
)


def register_format(suffix: str, format: type[DataFile]) -> None:
    """Add a file format: files whose names end in `suffix`, such as .avro, are opened by this class."""
    if not suffix.startswith(".") or suffix != suffix.lower():
        raise ConfigError(f"the suffix of a data format starts with a dot and is in small letters (got {suffix!r}).")
    FORMATS.add(suffix, format)


def format_of(address: str, kind: str | None = None) -> type[DataFile]:
    """The format of a kind, or else of a file's suffix; a file with an unknown suffix is taken for Parquet."""
    if kind is not None:
        return KINDS[kind]
    fitting = [suffix for suffix in FORMATS if address.lower().endswith(suffix)]
    return FORMATS[max(fitting, key=len)] if fitting else ParquetFile


def suffixes_of(format: type[DataFile]) -> list[str]:
    return [suffix for suffix, known in FORMATS.items() if known is format]


def known_suffixes() -> str:
    """The suffixes of data files, in words."""
    packed = tuple(COMPRESSIONS)
    return f"{', '.join(name for name in FORMATS if not name.endswith(packed))} (text also with {' or '.join(packed)})"
