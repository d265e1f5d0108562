"""A rollout as its journal tells it; on the in-memory log."""

import re
from dataclasses import replace
from typing import Any

import pytest

from rollcall.compose.pages.rollout_page import reward_lines, titles
from rollcall.consumers.history.rollouts.rollout_story import Story, latest, stories_of
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import (
    AttemptStarted,
    CallFailed,
    DeadlinePassed,
    EnvironmentStepped,
    Limits,
    RolloutCancelled,
    RolloutFinished,
    RolloutRequest,
    Task,
    TokenScores,
)
from rollcall.schemas.packed import pack_logprobs
from tests.support.command_line import call
from tests.support.journals import entry
from tests.support.memory_cluster import CORRIDOR, POLICY, SAID, MemoryCluster
from tests.support.resent import send_again
from tests.support.scored_trajectories import scored

REQUEST = RolloutRequest("r", Task(CORRIDOR, seed=7, prompt="Find the door."), policy_id=POLICY)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    monkeypatch.setenv("COLUMNS", "200")
    return MemoryCluster()


WHOLE_PAGE = """\
r
program react, policy p, environment tests.support.memory_cluster:Corridor with seed 7, evaluate
turns 64, tokens a turn 256, tries 3, attempts 3, temperature 1, 'Find the door.'
TIME  1      started      (request 1:0, by agents-1)
TIME  1/0/0  environment  corridor 7  (reward +0)
                 turn 1
TIME  1/1/0  model        go  (2 tokens, mean log-prob -0.500, version 0, stop)
TIME  1/2/0  environment  door 1  (reward +0)
                 turn 2
TIME  1/3/0  model        go  (2 tokens, mean log-prob -0.500, version 0, stop)
TIME  1/4/0  environment  door 2  (reward +0)
                 turn 3
TIME  1/5/0  model        go  (2 tokens, mean log-prob -0.500, version 0, stop)
TIME  1/6/0  environment  door 3  (reward +1, terminated)
TIME  1      finished     door 3  (by agents-1)
finished after TIME: 3 turns, 6 tokens, 0 failures in attempt 1, 0 ignored events
time    waiting for model TIME (tries without an answer), model TIME (queue and sampling), \
environment TIME, overhead TIME
phases  submission TIME, scheduling TIME, environment start TIME, execution TIME
reward  +1 by environment_return, weight 1
total   +1 by scoring 'default'

"""


def story(cluster: MemoryCluster, rollout: str = "r") -> Story:
    return latest(stories_of(cluster, rollout))


def page(cluster: MemoryCluster, capsys: pytest.CaptureFixture[str], rollout: str = "r") -> str:
    capsys.readouterr()  # what was logged before
    call(cluster, "trajectory", rollout)
    return capsys.readouterr().out


def test_finished_rollout_is_shown_turn_by_turn_with_its_reward(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.hire(lambda call: "go")
    cluster.ask(REQUEST)
    cluster.finish()

    assert re.sub(r"[+]?\d+\.\d{3} s", "TIME", page(cluster, capsys)) == WHOLE_PAGE


def test_open_rollout_is_shown_up_to_its_last_event(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.start(REQUEST)
    cluster.enter(entry(EnvironmentStepped("a room"), 0))
    cluster.enter(entry(SAID, 1))

    shown = page(cluster, capsys)

    assert "versions 8 to 9" in shown
    assert shown.splitlines()[-2].startswith("time  ")
    assert story(cluster).end is None


def test_all_attempts_are_shown_and_only_the_last_is_summarised(
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

    shown, told = page(cluster, capsys), story(cluster)

    assert "2/0/1  environment  another room" in shown
    assert shown.index("attempt 2") < shown.index("began anew") < shown.rindex("turn 1")
    assert shown.rindex("turn 1") < shown.index("overloaded: come back")
    assert "raised: it fell" in shown
    assert (told.attempt, told.failures, len(told.last_attempt())) == (2, 2, 6)
    assert [*titles(told)] == ["", "", "turn 1", "", "attempt 2", "", "", "turn 1", "", ""]


def test_ignored_event_is_marked_with_the_reason(
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
    reasons = [entry.ignored for entry in story(cluster).entries if entry.ignored]

    kinds = [line.split("ignored: ")[1].split()[0] for line in marked]
    assert kinds == ["environment", "started", "finished", "model"]
    assert len(reasons) == len(set(reasons)) == 4
    assert all(reason in line for reason, line in zip(reasons, marked, strict=True))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (RolloutCancelled("enough"), "cancelled after"),
        (DeadlinePassed(60.0), "timed out after"),
    ],
)
def test_interrupted_rollout_shows_its_end(
    body: Any, words: str, cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.start(REQUEST)
    cluster.enter(entry(body))

    assert words in page(cluster, capsys)


def test_refused_request_is_shown_with_the_reason_and_its_scoring(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.hire(lambda call: "go")
    cluster.ask(replace(REQUEST, agent="reakt"))
    cluster.log.append(cluster.topics.requests, b"bytes", b"hello")
    cluster.finish()

    assert "'reakt'" in page(cluster, capsys)
    assert "total   none by scoring 'default': refused/unreadable" in page(cluster, capsys, "bytes")
    assert story(cluster, "bytes").request is None


def test_reused_id_shows_both_rollouts_with_their_rewards(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.hire(lambda call: "go")
    for turns in (3, 1):
        asked = cluster.codec.encode(
            cluster.topics.requests, replace(REQUEST, limits=Limits(max_turns=turns))
        )
        topics, key = cluster.topics, REQUEST.rollout_id.encode()
        send_again(cluster.log, topics.dead_letters, topics.requests, key, asked)
        cluster.finish()

    shown = page(cluster, capsys)

    assert shown.count("program react") == 2
    assert shown.index("total   +1") < shown.index("total   +0")


def test_journal_without_its_start_is_still_shown(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.start(REQUEST)
    cluster.enter(entry(EnvironmentStepped("a room"), 0))
    cluster.log.delete_before(cluster.topics.events, 0, 1)

    shown = page(cluster, capsys)

    assert "its start is past retention" in shown
    assert "a room" in shown


def test_unreadable_bytes_in_the_journal_are_marked(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.start(REQUEST)
    cluster.log.append(cluster.topics.events, b"r", b"hello", 0)

    assert "unreadable" in page(cluster, capsys)


def test_policy_text_cannot_control_the_terminal(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.start(REQUEST)
    cluster.enter(entry(replace(SAID, text="\x1b[2J[red]left[/red]"), 0))

    assert "\\x1b[2J[red]left[/red]" in page(cluster, capsys)


def test_unknown_rollout_is_refused_with_the_number_of_searched_rollouts(
    cluster: MemoryCluster,
) -> None:
    for number in range(3):
        cluster.start(replace(REQUEST, rollout_id=f"r{number}"), number)
    cluster.ask(replace(REQUEST, rollout_id="asked"))

    with pytest.raises(Refused, match=r"'x' among the 3 in t\.rollout\.events$"):
        call(cluster, "trajectory", "x")
    with pytest.raises(Refused, match="did you mean 'r0'"):
        call(cluster, "trajectory", "r")
    with pytest.raises(Refused, match="is requested, but not started"):
        call(cluster, "trajectory", "asked")


def test_token_scores_have_a_line_for_each_sequence() -> None:
    tokens = (TokenScores("teacher", 1, pack_logprobs([-0.5, -2.0])), TokenScores("mine", 0, b""))
    one = replace(scored("r"), rewards=(), token_scores=tokens)

    assert reward_lines([one])[:2] == [
        "tokens  2 scores of sequence 1 by teacher, -2.000 to -0.500",
        "tokens  0 scores of sequence 0 by mine",
    ]
