"""A recorded run can be played again, and a trace that was tampered with is found out."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps.errors import RunError
from heterps.sync import Policy, make_policy, record, replay
from heterps.sync.trace import replay_lines

KINDS = ("bsp", "bsp+backup:1", "asp", "ssp:1", "dssp:1:4", "dssp:0:3+elapsed+lower", "dssp:1:4+literal")
moves = st.lists(st.tuples(st.integers(0, 5), st.floats(0, 3), st.sampled_from(["push"] * 8 + ["churn"])), max_size=80)


def play(policy: Policy, moves: list[tuple[int, float, str]]) -> list[list[str]]:
    """Each move is made by one of those who may make it."""
    now, answers = 0.0, []
    for number, seconds, what in moves:
        now += seconds
        name = "abcdef"[number]
        if name not in policy.clocks.of:
            answers.append(policy.on_join(name, now))
        elif what == "churn":
            answers.append(policy.on_leave(name, now))
        elif name not in policy.waiting:
            answers.append(policy.on_push(name, now))
    return answers


@pytest.mark.parametrize("kind", KINDS)
@given(moves=moves)
def test_replay_decides_as_recorded(kind: str, moves: list[tuple[int, float, str]]) -> None:
    plain = make_policy(kind, "abcd")
    recorded, file = make_policy(kind, "abcd"), io.StringIO()
    record(recorded, file)
    assert play(recorded, moves) == play(plain, moves), "recording changed a decision"
    again = replay_lines(io.StringIO(file.getvalue()))
    assert again.config == recorded.config
    assert again.waiting == recorded.waiting
    assert {worker: again.clocks.of[worker] for worker in again.clocks.of} == {
        worker: recorded.clocks.of[worker] for worker in recorded.clocks.of
    }


def trace(tmp_path: Path) -> tuple[Path, list[str]]:
    path = tmp_path / "trace.jsonl"
    with path.open("w") as file:
        policy = make_policy("ssp:1", "ab", now=0.5)
        record(policy, file)
        policy.on_push("a", 1.1)
        policy.on_push("a", 2.2)
        policy.on_push("b", 2.3)
    return path, path.read_text().splitlines(keepends=True)


def test_the_file_says_who_when_and_how_far_ahead(tmp_path: Path) -> None:
    path, lines = trace(tmp_path)
    assert json.loads(lines[0]) == {
        "version": 1, "policy": {"kind": "ssp", "lower": 1}, "workers": ["a", "b"], "now": 0.5,
    }  # fmt: skip
    assert [json.loads(line)["event"] for line in lines[1:]] == [
        "pushed", "released", "pushed", "waits", "pushed", "released", "released",
    ]  # fmt: skip
    assert json.loads(lines[4]) == {"event": "waits", "worker": "a", "now": 2.2, "clock": 2, "lead": 2}
    assert replay(path).clocks.of["a"] == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda lines: [], "this trace is empty"),
        (lambda lines: lines[1:], r"trace.jsonl:1: .*policy"),
        (lambda lines: lines[:-1], "trace.jsonl:7: the trace ends here, but the policy goes on"),
        (lambda lines: lines[:4] + lines[5:], 'trace.jsonl:5: the trace says .*"pushed".*the policy .*"waits"'),
        (lambda lines: [lines[0].replace('"lower":1', '"lower":9'), *lines[1:]], "trace.jsonl:5: the trace says"),
        (lambda lines: [*lines, lines[-1]], "trace.jsonl:9: the trace says .* has decided nothing more"),
        (lambda lines: [*lines, lines[1]], "trace.jsonl:9: time goes back"),
        (lambda lines: [*lines[:-1], lines[-1][:20]], "trace.jsonl:8: not a line of a trace"),
        (lambda lines: [lines[0], lines[1].replace("pushed", "pulled")], "trace.jsonl:2: event: must be"),
        (lambda lines: [lines[0], lines[1].replace('"lead": 1', '"lead": 2')], "the trace says .* the policy"),
    ],
)
def test_a_trace_that_is_not_what_the_policy_decides_is_found_out(tmp_path: Path, change, says: str) -> None:
    path, lines = trace(tmp_path)
    path.write_text("".join(change(lines)))
    with pytest.raises(RunError, match=says):
        replay(path)


def test_a_trace_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"none\.jsonl: cannot read this trace: No such file"):
        replay(tmp_path / "none.jsonl")


def test_a_policy_is_recorded_from_its_first_input_and_other_listeners_hear_on() -> None:
    heard: list[str] = []
    policy = make_policy("asp", "ab", on_event=lambda event: heard.append(event.kind))
    record(policy, io.StringIO())
    policy.on_push("a", 1.0)
    assert heard == ["pushed", "released"]
    with pytest.raises(ValueError, match="from its first input on"):
        record(policy, io.StringIO())


def test_a_trace_of_so_many_inputs_ends_with_what_was_decided_on_the_last_and_can_be_replayed():
    policy, file = make_policy("ssp:1", ["a", "b"]), io.StringIO()
    record(policy, file, most_inputs=3)
    for now, worker in enumerate("aabba", 1):
        policy.on_push(worker, float(now))
    lines = file.getvalue().splitlines()
    assert [json.loads(line)["event"] for line in lines[1:]].count("pushed") == 3
    replayed = replay_lines(lines)
    assert replayed.clocks.of == {"a": 2, "b": 1}
    assert policy.clocks.of == {"a": 3, "b": 2}, "the policy itself goes on"
