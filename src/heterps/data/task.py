"""Tasks of synthetic data sets: each draws rows, and its teacher model draws their labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Drawn:
    """Rows as an Arrow table of the task's schema, with the teacher's predictions."""

    table: Any
    expected: NDArray[np.float64]  # expectation of the label, which no model can predict better: of a bool, P(true)
    label: NDArray[np.bool_] | NDArray[np.float64]


class Task(Protocol):
    """Draws the rows of a seed; each row is a pure function of its number."""

    schema: Any  # an Arrow schema
    possible_ids: int

    def draw(self, first_row: int, num_rows: int, seen: NDArray[np.bool_]) -> Drawn:
        """Draw `num_rows` rows from `first_row`, and mark their ids in `seen` [possible_ids]. Thread-safe."""
