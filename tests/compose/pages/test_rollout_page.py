"""A rollout as its journal tells it; on the in-memory log."""

from dataclasses import replace
from typing import Any

import pytest

from schemas.errors import Refused
from schemas.headers import REPLAYED_FROM, Headers
from schemas.messages import (
    AttemptStarted,
    CallFailed,
    DeadlinePassed,
    EnvironmentStepped,
    Limits,
    RolloutCancelled,
    RolloutFinished,
    RolloutRequest,
    Task,
)
from tests.support.command_line import call
from tests.support.journals import entry
from tests.support.memory_cluster import CORRIDOR, POLICY, SAID, MemoryCluster

REQUEST = RolloutRequest("r", Task(CORRIDOR, seed=7, prompt="Find the door."), policy_id=POLICY)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    monkeypatch.setenv("COLUMNS", "200")
    return MemoryCluster()


def page(cluster: MemoryCluster, capsys: pytest.CaptureFixture[str], rollout: str = "r") -> str:
    call(cluster, "trajectory", rollout)
    return capsys.readouterr().out


def test_a_finished_rollout_is_shown_turn_by_turn_with_its_reward(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.hire(lambda call: "go")
    cluster.ask(REQUEST)
    cluster.finish()

    shown = page(cluster, capsys)

    assert "program react, policy p" in shown
    assert "with seed 7" in shown
    assert "'Find the door.'" in shown
    assert [f"turn {n}" in shown for n in (1, 2, 3, 4)] == [True, True, True, False]
    assert "1/1/0  model" in shown
    assert "go  (2 tokens, mean log-prob -0.500, version 0, stop)" in shown
    assert "door 3  (reward +1, terminated)" in shown
    assert "finished after" in shown
    assert "3 turns, 6 tokens, 0 failures in attempt 1, 0 ignored events" in shown
    assert "reward  +1 by environment_return" in shown
    assert "total   +1 by scoring 'default'" in shown


def test_an_open_rollout_is_shown_as_far_as_it_has_come(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.start(REQUEST)
    cluster.enter(entry(EnvironmentStepped("a room"), 0))
    cluster.enter(entry(SAID, 1))

    shown = page(cluster, capsys)

    assert "left  (2 tokens, mean log-prob -1.000, versions 8 to 9, stop)" in shown
    assert "still open: 1 turns, 2 tokens" in shown


def test_failures_and_new_attempts_are_shown_and_only_the_last_attempt_is_summed_up(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.start(REQUEST)
    cluster.enter(entry(EnvironmentStepped("a room"), 0))
    cluster.enter(entry(SAID, 1))
    cluster.enter(entry(CallFailed("session_lost", "its worker died", False), 2))
    cluster.enter(entry(AttemptStarted("its worker died"), attempt=2))
    cluster.enter(entry(CallFailed("deadline", "no answer", True), 0, attempt=2))
    cluster.enter(entry(EnvironmentStepped("another room"), 0, attempt=2, tries=1))
    cluster.enter(entry(CallFailed("overloaded", "come back", True), 1, attempt=2))
    cluster.enter(entry(SAID, 1, attempt=2, tries=1))
    cluster.enter(entry(RolloutFinished("failed", "raised", "it fell"), attempt=2))

    shown = page(cluster, capsys)

    assert "failed" in shown
    assert "deadline: no answer  (may be tried again" in shown
    assert "2/0/1  environment  another room" in shown
    assert shown.index("attempt 2") < shown.index("began anew") < shown.rindex("turn 1")
    assert shown.rindex("turn 1") < shown.index("overloaded: come back")
    assert "raised: it fell" in shown
    assert "1 turns, 2 tokens, 2 failures in attempt 2, 0 ignored events" in shown
    assert "not scored yet" in shown


def test_what_did_not_count_is_marked_with_the_reason(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.start(REQUEST)
    cluster.enter(entry(EnvironmentStepped("a room"), 0))
    cluster.enter(entry(EnvironmentStepped("another room"), 0))
    cluster.start(REQUEST)
    cluster.enter(entry(RolloutFinished("finished"), attempt=3))
    cluster.enter(entry(RolloutCancelled("enough", "me")))
    cluster.enter(entry(SAID, 1))

    marked = [line for line in page(cluster, capsys).splitlines() if "ignored:" in line]

    assert [line.split("ignored: ")[1].split()[0] for line in marked] == [
        "environment",
        "started",
        "finished",
        "model",
    ]
    assert "answered already" in marked[0]
    assert "its request was started before" in marked[1]
    assert "of attempt 3, while 1 was current" in marked[2]
    assert "the rollout is not open" in marked[3]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (RolloutCancelled("enough"), "cancelled after"),
        (DeadlinePassed(60.0), "timed out after"),
    ],
)
def test_a_rollout_that_was_cut_off_says_how(
    body: Any, words: str, cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.start(REQUEST)
    cluster.enter(entry(body))

    assert words in page(cluster, capsys)


def test_a_refused_request_is_shown_with_the_reason_and_what_scorers_said(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.hire(lambda call: "go")
    cluster.ask(replace(REQUEST, agent="reakt"))
    cluster.log.append(cluster.topics.requests, b"bytes", b"hello")
    cluster.finish()

    assert "unknown program 'reakt'" in page(cluster, capsys)
    unreadable = page(cluster, capsys, "bytes")
    assert "its request cannot be read" in unreadable
    assert "total   none by scoring 'default': refused/unreadable" in unreadable


def test_an_id_that_was_used_again_tells_both_rollouts_each_with_its_reward(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.hire(lambda call: "go")
    for turns in (3, 1):
        asked = cluster.codec.encode(
            cluster.topics.requests, replace(REQUEST, limits=Limits(max_turns=turns))
        )
        sent_again: Headers = [(REPLAYED_FROM, b"an operator may")]
        key = REQUEST.rollout_id.encode()
        cluster.log.append(cluster.topics.requests, key, asked, headers=sent_again)
        cluster.finish()

    shown = page(cluster, capsys)

    assert shown.count("program react") == 2
    assert shown.index("total   +1") < shown.index("total   +0")


def test_a_journal_whose_start_is_past_retention_is_shown_all_the_same(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.start(REQUEST)
    cluster.enter(entry(EnvironmentStepped("a room"), 0))
    cluster.log.delete_before(cluster.topics.events, 0, 1)

    shown = page(cluster, capsys)

    assert "its start is past retention" in shown
    assert "a room" in shown


def test_bytes_in_the_journal_that_cannot_be_read_are_marked(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.start(REQUEST)
    cluster.log.append(cluster.topics.events, b"r", b"hello", 0)

    assert "unreadable" in page(cluster, capsys)


def test_what_a_policy_says_cannot_move_the_terminal(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.start(REQUEST)
    cluster.enter(entry(replace(SAID, text="\x1b[2J[red]left[/red]"), 0))

    assert "\\x1b[2J[red]left[/red]" in page(cluster, capsys)


def test_an_unknown_rollout_is_refused_with_the_number_of_those_looked_at(
    cluster: MemoryCluster,
) -> None:
    for number in range(3):
        cluster.start(replace(REQUEST, rollout_id=f"r{number}"), number)
    cluster.ask(replace(REQUEST, rollout_id="asked"))

    with pytest.raises(Refused, match=r"no rollout 'x' among the 3 in t\.rollout\.events$"):
        call(cluster, "trajectory", "x")
    with pytest.raises(Refused, match="did you mean 'r0'"):
        call(cluster, "trajectory", "r")
    with pytest.raises(Refused, match="is requested, but not started"):
        call(cluster, "trajectory", "asked")
