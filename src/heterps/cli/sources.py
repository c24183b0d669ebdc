"""The options --format and --storage, which say what data.format and data.storage of a job say."""

from __future__ import annotations

from typing import TypeVar

from heterps.config import Format, Storage
from heterps.yamlfile import parse, validate

FORMAT_HELP = "How to read the files, as data.format of a job: 'kind: criteo', 'names: [user, item], delimiter: ;'."
STORAGE_HELP = "How to reach S3, as data.storage of a job: 'endpoint: http://minio:9000', 'anonymous: true'."

M = TypeVar("M", Format, Storage)


def parse_format(text: str) -> Format:
    return _parse(text, Format, "--format")


def parse_storage(text: str) -> Storage:
    return _parse(text, Storage, "--storage")


def _parse(text: str, model: type[M], option: str) -> M:
    """Return the model that an option describes in YAML, with or without braces; raises ConfigError."""
    if not text.strip():
        return model()
    data, lines = parse(text if text.lstrip().startswith("{") else f"{{{text}}}", where=option, what="option")
    return validate(data, model, where=option, lines=lines)
