"""Whether the versions of a run fit an export: the export's own preprocessing and tables are used with their rows."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heterps.config import load_job
from heterps.errors import ModelError
from heterps.model.build import build_model
from heterps.serving.export import inputs_of, tables_of

log = logging.getLogger(__name__)

OF_FILES = ("csv",)
"""Parts of the inputs that say how files are read, and nothing about samples."""


def difference(run: Path, manifest: Mapping[str, Any]) -> str | None:
    """Say how the inputs or tables of a run's job differ from those of the export with this manifest; None: not at all.

    Keys are hashed, numbers prepared and missing rows made as the export says, so that other inputs or tables would
    give wrong scores without a word. Where the model of the job cannot be built in this process, because its code is
    not here, only the inputs are compared.
    """
    job = load_job(run / "job.yaml")
    inputs = {name: value for name, value in manifest["inputs"].items() if name not in OF_FILES}
    found = {name: value for name, value in inputs_of(job).items() if name in inputs}
    kinds = [{name: kind for name, kind in each["id_kinds"].items() if kind != "null"} for each in (found, inputs)]
    both = kinds[0].keys() & kinds[1].keys()  # others are not found yet
    found["id_kinds"], inputs["id_kinds"] = ({name: each[name] for name in both} for each in kinds)
    if (problem := _compared(run, "inputs", found, inputs)) is not None:
        return problem
    try:
        model = build_model(job.model, job.data.columns, job.seed)
    except ModelError as error:
        log.warning("%s: its tables are not compared with those of the export: %s", run, error)
        return None
    return _compared(run, "tables", tables_of(model, job), manifest["tables"])


def _compared(run: Path, what: str, found: Mapping[str, Any], exported: Mapping[str, Any]) -> str | None:
    found = json.loads(json.dumps(found))
    different = sorted(name for name in found.keys() | exported.keys() if found.get(name) != exported.get(name))
    if not different:
        return None
    return (
        f"{run} does not fit this export: its job has other {what} ({', '.join(different[:10])}), so that scores would "
        "be wrong. Follow the run that was exported, or export this run and serve that."
    )
