"""A follower puts versions in place in order, and nothing that happens to them ends it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from heterps.errors import CorruptCheckpoint
from heterps.serving.following import Follower, NothingToFollow, Status


class Script:
    """A source that does what each entry says, one entry a look: yields versions, then raises."""

    name = "script"

    def __init__(self, *looks: list[str | Exception]) -> None:
        self.looks = list(looks)
        self.is_closed = False
        self.is_done = threading.Event()

    def look(self) -> Iterator[str]:
        if not self.looks:
            self.is_done.set()
            return
        for found in self.looks.pop(0):
            if isinstance(found, Exception):
                raise found
            yield found

    def close(self) -> None:
        self.is_closed = True


class Followed:
    """A follower on a clock of its own, and what it told."""

    def __init__(self, *looks: list[str | Exception], every_s: float = 0.001) -> None:
        self.now_s = 0.0
        self.versions: list[str] = []
        self.statuses: list[Status] = []
        self.source = Script(*looks)
        self.follower = Follower(
            self.source, every_s, self.versions.append, self.statuses.append, clock=lambda: self.now_s
        )

    def look(self, now_s: float) -> dict[str, object]:
        self.now_s = now_s
        self.follower.look()
        self.now_s += 0.5
        return self.follower.describe()


def test_versions_are_put_in_place_in_order() -> None:
    followed = Followed(["1", "2"], [], ["3"])
    assert followed.look(1.0) == {"source": "script", "state": "following", "detail": "", "lag_s": 0.5}
    followed.look(2.0)
    followed.look(3.0)
    assert followed.versions == ["1", "2", "3"]
    assert followed.statuses == [Status("following")]


def test_a_version_that_cannot_be_used_is_told_until_one_can_be() -> None:
    bad = CorruptCheckpoint("version 2 is damaged")
    followed = Followed(["1", bad], [bad], [KeyError("x")], ["3"])
    assert followed.look(1.0)["detail"] == "version 2 is damaged"
    assert followed.look(2.0) == {
        "source": "script", "state": "refused", "detail": "version 2 is damaged", "lag_s": 2.5,
    }  # fmt: skip
    assert followed.look(3.0)["detail"] == "KeyError: 'x'"
    assert followed.look(4.0)["lag_s"] == 0.5
    assert followed.versions == ["1", "3"]
    assert [status.state for status in followed.statuses] == ["refused", "refused", "following"]


def test_waiting_is_no_lag() -> None:
    followed = Followed([NothingToFollow("runs/x does not run")], ["1", NothingToFollow("runs/x does not run")])
    assert followed.look(9.0) == {"source": "script", "state": "waiting", "detail": "runs/x does not run", "lag_s": 0.5}
    followed.look(10.0)
    assert followed.versions == ["1"]


def test_the_thread_outlives_failures_and_ends_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterps.serving.following.REFUSED_S", 0.0)
    followed = Followed([], [RuntimeError("once")], ["1"], [ValueError("again")], ["2"])
    followed.follower.start()
    assert followed.source.is_done.wait(10)
    followed.follower.close()
    assert followed.versions == ["1", "2"]
    assert followed.source.is_closed


def test_it_can_be_closed_before_it_was_started() -> None:
    followed = Followed([])
    followed.follower.close()
    assert followed.source.is_closed
