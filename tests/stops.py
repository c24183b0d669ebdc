"""An observer that ends a run in this process before its last batch."""

from __future__ import annotations

import os
import signal

from heterps.training.run.observer import Observer


class StopsAfter(Observer):
    """Interrupts the run as a signal would, once so many samples are trained."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def stepped(self, samples: int, seconds: float, loss: float, interval: object) -> None:
        if samples >= self.samples:
            os.kill(os.getpid(), signal.SIGTERM)
