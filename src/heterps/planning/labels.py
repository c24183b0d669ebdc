"""Labels: chains of stages over the first layers, kept in slots of states; both exact searches extend and compare them.

state (j, t): layers 0 .. j-1 are in stages, the last of them on resource t
slots of a state: from (j * T + t) * (width + 1) on; the last one is for a new label
"""

from __future__ import annotations

import numpy as np

from heterps.planning.cost import Schedules


class Labels:
    """What all labels have: how many there are in each state, and which label each of them extends."""

    def __init__(self, width: int, num_layers: int, num_resources: int) -> None:
        self.slots = width + 1
        self.total = (num_layers + 1) * num_resources * self.slots
        self.before = np.empty(self.total, np.int64)
        self.num = np.empty((num_layers + 1, num_resources), np.int64)

    def ends(self) -> list[int]:
        """Return the indices of the labels that cover all layers."""
        end = (len(self.num) - 1) * self.num.shape[1]
        return [
            label
            for t, num in enumerate(self.num[-1].tolist())
            for label in range((end + t) * self.slots, (end + t) * self.slots + num)
        ]

    def schedule(self, label: int) -> Schedules:
        """Return the schedule [N] of a label that covers all layers."""
        num_resources = self.num.shape[1]
        schedule = np.empty(len(self.num) - 1, np.int16)
        while (before := int(self.before[label])) >= 0:
            end, resource = divmod(label // self.slots, num_resources)
            schedule[before // self.slots // num_resources : end] = resource
            label = before
        return schedule
