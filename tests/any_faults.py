"""What a bad network may do to messages, drawn by hypothesis. Times are of a simulated clock."""

from __future__ import annotations

from hypothesis import strategies as st

from heterps.config import Faults

faults = st.builds(
    Faults,
    drop=st.floats(0, 0.5),
    double=st.floats(0, 0.8),
    delay_s=st.floats(0, 20),
    reorder=st.floats(0, 1),
    cut=st.floats(0, 0.1),
    cut_s=st.floats(0.1, 20),
)
