"""The option --format, which says what data.format of a job says."""

from __future__ import annotations

from heterps.config import Format
from heterps.yamlfile import parse, validate

FORMAT_HELP = "How to read the files, as data.format of a job: 'kind: criteo', 'names: [user, item], delimiter: ;'."


def parse_format(text: str) -> Format:
    """Return the format that an option names; raises ConfigError."""
    if not text.strip():
        return Format()
    data, lines = parse(text if text.lstrip().startswith("{") else f"{{{text}}}", where="--format", what="format")
    return validate(data, Format, where="--format", lines=lines)
