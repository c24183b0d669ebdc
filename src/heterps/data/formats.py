"""The file formats of data sets, by the suffix of a file's name."""

from __future__ import annotations

from heterps.data.file import DataFile
from heterps.data.parquet import ParquetFile
from heterps.errors import ConfigError
from heterps.plugins import Registry

FORMATS: Registry[type[DataFile]] = Registry(
    "data format for files that end in", dict.fromkeys((".parquet", ".parq", ".pq"), ParquetFile)
)


def register_format(suffix: str, format: type[DataFile]) -> None:
    """Add a file format: files whose names end in `suffix`, such as .csv, are opened by this class."""
    if not suffix.startswith(".") or suffix != suffix.lower():
        raise ConfigError(f"the suffix of a data format starts with a dot and is in small letters (got {suffix!r}).")
    FORMATS.add(suffix, format)


def format_of(address: str) -> type[DataFile]:
    """The format of a file by its suffix; a file with another suffix is taken for Parquet."""
    fitting = [suffix for suffix in FORMATS if address.lower().endswith(suffix)]
    return FORMATS[max(fitting, key=len)] if fitting else ParquetFile


def suffixes_of(format: type[DataFile]) -> list[str]:
    return [suffix for suffix, known in FORMATS.items() if known is format]
