"""Tasks of synthetic data sets: each draws rows, and its teacher model draws their labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Drawn:
    """Rows as an Arrow table of the task's schema, with the teacher's probabilities."""

    table: Any
    probability: NDArray[np.float64]  # the teacher's probability of label 1: no model can predict better
    label: NDArray[np.bool_]


class Task(Protocol):
    """Draws the rows of a seed; each row is a pure function of its number."""

    schema: Any  # an Arrow schema
    possible_ids: int

    def draw(self, first_row: int, num_rows: int, seen: NDArray[np.bool_]) -> Drawn:
        """Draw `num_rows` rows from `first_row`, and mark their ids in `seen` [possible_ids]. Thread-safe."""
