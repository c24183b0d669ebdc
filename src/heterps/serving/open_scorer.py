"""Open an export, for all commands alike: whatever is wrong with it is a RunError, which says what to do."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from heterps.errors import RunError
from heterps.serving.score import Scorer
from heterps.serving.score_inputs import ScoreError


def open_scorer(folder: Path) -> Scorer:
    """Return the scorer of the export in a folder. Raises RunError if it cannot be read, or its runtime is not here."""
    try:
        return Scorer(folder)
    except ScoreError as error:
        raise RunError(str(error)) from None
    except ImportError as error:
        raise RunError(f"{folder}: its graph needs a package that is not here: {error}. Install it.") from None
    except (OSError, pa.ArrowException, RuntimeError) as error:
        text = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise RunError(f"{folder}: the export cannot be opened: {text}. Export the model again.") from None
