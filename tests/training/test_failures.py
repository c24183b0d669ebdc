"""Of several errors the cause is told: whoever says it, by whichever way, and in whatever order."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from heterps.errors import ConfigError, DataError, HeterpsError, ModelError, NotFinite, PeerLost, StaleIncarnation
from heterps.training.coordinator import failures
from heterps.training.coordinator.failures import PeerDied, error_of, find_culprit, kind_and_text, most_telling
from heterps.training.protocol.messages import AskState, Failed, JobCodec, Message
from heterps.training.worker.mailbox import Mailbox
from heterps.wire import MemoryNetwork

CAUSE = ModelError("the model is wrong")
DEATH = PeerDied("worker-2.0", "worker-2.0 ended with exit code -9")
LOST, OLD = PeerLost("no news of worker-2.0"), StaleIncarnation("another has its place")


class FleetOf:
    """Whose workers said these things, and of whose processes this can be seen."""

    def __init__(self, said: Sequence[Message], seen: HeterpsError | None = None) -> None:
        network, codec = MemoryNetwork(), JobCodec()
        self.mailbox, sender = Mailbox(network.channel("coordinator")), network.channel("worker-1.0")
        sender.send("coordinator", [b"no message"])
        for message in said:
            sender.send("coordinator", codec.encode(message))
        self.seen = seen

    def check(self) -> None:
        if self.seen is not None:
            raise self.seen


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "HEAR_S", 0.2)


@pytest.mark.parametrize("found", list(itertools.permutations([CAUSE, DEATH, LOST, OLD])))
def test_a_cause_explains_more_than_a_death_and_a_death_more_than_a_loss(found: tuple[HeterpsError, ...]) -> None:
    assert most_telling(found) is CAUSE
    assert most_telling([error for error in found if error is not CAUSE]) is DEATH
    rest = [error for error in found if error in (LOST, OLD)]
    assert most_telling(rest) is rest[0], "the first"


def test_a_cause_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "HEAR_S", 1e9)
    assert find_culprit(CAUSE, FleetOf([], DEATH)) is CAUSE


def test_a_cause_that_a_worker_tells_later_is_found() -> None:
    fleet = FleetOf(
        [AskState(), Failed("worker-1.0", "PeerLost", "no gradients"), Failed("worker-2.0", "NotFinite", "nan")]
    )
    culprit = find_culprit(LOST, fleet)
    assert (type(culprit), str(culprit)) == (NotFinite, "worker-2.0: nan")


def test_a_cause_is_found_behind_a_death_that_is_seen_first() -> None:
    fleet = FleetOf([Failed("worker-2.0", "DataError", "row 7 is bad")], DEATH)
    assert str(find_culprit(LOST, fleet)) == "worker-2.0: row 7 is bad"


def test_a_death_is_told_rather_than_what_others_say_of_it() -> None:
    fleet = FleetOf([Failed("worker-1.0", "PeerLost", "no gradients of worker-2.0")], DEATH)
    assert find_culprit(LOST, fleet) is DEATH


def test_a_loss_that_nothing_explains_stays_as_it_is() -> None:
    assert find_culprit(LOST, FleetOf([])) is LOST


@pytest.mark.parametrize("error", [ConfigError("no"), DataError("row 3"), NotFinite("nan"), PeerLost("gone")])
def test_errors_travel_with_their_type_and_text(error: HeterpsError) -> None:
    came = error_of(*kind_and_text(error))
    assert (type(came), str(came)) == (type(error), str(error))


def test_an_error_that_is_not_ours_travels_as_a_bug_with_the_place_of_its_traceback() -> None:
    came = error_of(*kind_and_text(KeyError("x"), "run/logs/worker-1.0.log"))
    assert (type(came), str(came)) == (HeterpsError, "KeyError: 'x'. run/logs/worker-1.0.log shows the line")
    assert type(error_of("os", "a kind that is none")) is HeterpsError


def test_the_line_of_a_models_error_is_in_the_log_of_its_worker() -> None:
    assert kind_and_text(ModelError("bad; --debug shows the line."), "w.log") == (
        "ModelError",
        "bad; w.log shows the line.",
    )


def test_leaving_by_sys_exit_is_the_models_error() -> None:
    assert kind_and_text(SystemExit(3)) == (
        "ModelError",
        "code of the model called sys.exit(3). It must return instead",
    )
