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


def networks(*, is_bounded: bool) -> st.SearchStrategy[Faults]:
    """Networks that a job with mirrors gets through, or any; often one without faults."""
    bad = st.builds(
        Faults,
        drop=st.floats(0, 0.05 if is_bounded else 0.5),
        double=st.floats(0, 0.8),
        delay_s=st.floats(0, 0.1 if is_bounded else 2.0),
        reorder=st.floats(0, 1),
        reorder_s=st.floats(0.01, 0.2 if is_bounded else 2.0),
        cut=st.floats(0, 0.002 if is_bounded else 0.05),
        cut_s=st.floats(0.1, 0.4 if is_bounded else 5.0),
    )
    return st.just(Faults()) | bad
