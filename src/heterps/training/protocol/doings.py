"""What a worker does at any moment: it computes, communicates or waits."""

from __future__ import annotations

from typing import Literal

Doing = Literal["compute", "communicate", "wait"]
LETTERS: dict[Doing, str] = {"compute": "c", "communicate": "m", "wait": "w"}
"""The letter that stands for what a worker did, in messages and in traces."""
