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


def some(most: float) -> st.SearchStrategy[float]:
    """A value from 0 to the most, each as likely as others, which floats of hypothesis are not."""
    return st.integers(0, 10).map(lambda tenth: most * tenth / 10)


def networks(*, is_bounded: bool) -> st.SearchStrategy[Faults]:
    """Networks that a job with mirrors gets through, or any; often one without faults."""
    bad = st.builds(
        Faults,
        drop=some(0.05 if is_bounded else 0.5),
        double=some(0.8),
        delay_s=some(0.1 if is_bounded else 2.0),
        reorder=some(1.0),
        reorder_s=st.sampled_from([0.01, 0.05, 0.2] if is_bounded else [0.05, 0.5, 2.0]),
        cut=some(0.002 if is_bounded else 0.05),
        cut_s=st.sampled_from([0.1, 0.4] if is_bounded else [0.5, 1.5, 5.0]),
    )
    return st.just(Faults()) | bad
