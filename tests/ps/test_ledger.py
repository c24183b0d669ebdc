"""Ledger: what was applied is never applied again, and what is in doubt is not forgotten on a journey."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heterps.ps.shard.ledger import Ledger, PushSource, PushState

A = PushSource("a", 1)


def apply(ledger: Ledger, worker: str = "a", incarnation: int = 1, table: str = "t") -> None:
    source = PushSource(worker, incarnation)
    ledger.begin(source, table)
    ledger.finish(source, table)


def test_pushes_go_from_early_to_next_to_applied() -> None:
    ledger = Ledger()
    assert ledger.state(A, "t", 1) is PushState.NEXT
    assert ledger.state(A, "t", 2) is PushState.EARLY
    apply(ledger)
    assert ledger.state(A, "t", 1) is PushState.APPLIED
    assert ledger.state(A, "t", 2) is PushState.NEXT
    ledger.begin(A, "t")
    assert ledger.state(A, "t", 2) is PushState.APPLYING


def test_workers_tables_and_lives_count_apart_and_all_pushes_count_for_the_table() -> None:
    ledger = Ledger()
    apply(ledger)
    apply(ledger, table="u")
    apply(ledger, worker="b")
    apply(ledger, incarnation=2)
    assert (
        ledger.applied(PushSource("a", 2), "t")
        == ledger.applied(PushSource("b", 1), "t")
        == ledger.applied(A, "u")
        == 1
    )
    assert ledger.applied(A, "t") == 0  # an older life, which servers refuse
    assert ledger.num_pushes == {"t": 3, "u": 1}


def test_a_table_that_was_loaded_counts_on_from_what_it_had_seen() -> None:
    ledger = Ledger()
    ledger.begin(A, "t")
    ledger.finish(A, "t", num_pushes=7)
    assert (ledger.num_pushes, ledger.applied(A, "t")) == ({"t": 7}, 1)
    apply(ledger)
    ledger.end_round("t")
    assert (ledger.num_pushes, ledger.applied(A, "t")) == ({"t": 9}, 2)


@given(pushes=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 2), st.sampled_from("tu")), max_size=20))
def test_a_ledger_survives_its_journey(pushes: list[tuple[str, int, str]]) -> None:
    ledger = Ledger()
    for worker, incarnation, table in pushes:
        apply(ledger, worker, incarnation, table)
    ledger.begin(PushSource("c", 1), "t")
    copy = ledger.copy()
    assert copy == ledger
    apply(copy)
    assert copy != ledger
