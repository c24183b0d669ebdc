"""Task: what a synthetic data set is about. It draws rows, and its teacher draws their labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Drawn:
    """Rows as an Arrow table of the task's schema, with what the teacher knows about them."""

    table: Any
    probability: NDArray[np.float64]  # of the label 1, as the teacher sees it: no model can know better
    label: NDArray[np.bool_]


class Task(Protocol):
    """The rows of a seed, each a pure function of its number."""

    schema: Any  # of Arrow
    possible_ids: int

    def draw(self, first_row: int, num_rows: int, seen: NDArray[np.bool_]) -> Drawn:
        """Rows `first_row` .. `first_row + num_rows`. Marks their ids in `seen` [possible_ids]. Any thread."""
