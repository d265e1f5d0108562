"""Records as lines of JSON, and a rollout as its journal tells it; on the in-memory log."""

import json
import os
import signal
import sys
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from consumers.agents.fold.journal import Journal
from consumers.history.counting import Counting
from schemas.as_json import plain
from schemas.errors import Refused
from schemas.headers import REPLAYED_FROM, Headers
from schemas.messages import (
    AttemptStarted,
    CallFailed,
    Control,
    DeadlinePassed,
    EnvironmentStepped,
    Event,
    Limits,
    RolloutCancelled,
    RolloutFinished,
    RolloutRequest,
    Sequence,
    Task,
)
from schemas.packed import pack_ids, pack_logprobs
from tests.journals.programs import DICED
from tests.support.command_line import call
from tests.support.journals import Dice, world_of
from tests.support.memory_cluster import CORRIDOR, POLICY, SAID, MemoryCluster

REQUEST = RolloutRequest("r", Task(CORRIDOR, seed=7, prompt="Find the door."), policy_id=POLICY)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    monkeypatch.setenv("COLUMNS", "200")
    return MemoryCluster()


def at(body: Any, position: int = -1, attempt: int = 1, tries: int = 0) -> Event:
    ids = (b"\x01" * 16, b"\xab" * 16) if position >= 0 else (b"", b"")
    return Event("r", attempt, position, tries, *ids, "somebody", body)


def lines(
    cluster: MemoryCluster,
    capsys: pytest.CaptureFixture[str],
    topic: str = "control",
    *,
    decode: bool = False,
    limit: int = 0,
    follow: bool = False,
    last: int = 0,
) -> list[dict[str, Any]]:
    options = [f"--limit={limit}", f"--last={last}", *(["--follow"] if follow else [])]
    call(cluster, "tail", topic, "--decode" if decode else "--raw", *options)
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def page(cluster: MemoryCluster, capsys: pytest.CaptureFixture[str], rollout: str = "r") -> str:
    call(cluster, "trajectory", rollout)
    return capsys.readouterr().out


# Records as lines


def test_a_record_is_shown_with_its_place_time_key_headers_and_bytes(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    headers = [("ce_id", b"1"), ("tag", b"a"), ("tag", b"\xff"), ("none", None)]
    cluster.log.wall = lambda: 1_700_000_000.25
    cluster.log.append("t.control", b"k", b"\x00\x01", headers=headers)

    assert lines(cluster, capsys) == [
        {
            "partition": 0,
            "offset": 0,
            "time": "2023-11-14T22:13:20.250+00:00",
            "key": "k",
            "headers": {"ce_id": "1", "tag": ["a", "ff"], "none": None},
            "value": "0001",
        }
    ]


def test_a_decoded_union_is_named_its_packed_bytes_are_numbers_and_its_ids_are_hex(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.enter(at(SAID, 3))

    [line] = lines(cluster, capsys, "rollout.events", decode=True)

    body = line["value"]["body"]["ModelAnswered"]
    assert line["value"]["command_id"] == "01" * 16
    assert (body["added_ids"], body["token_ids"]) == ([1, 2], [3, -4])
    assert (body["logprobs"], body["versions"]) == ([-0.5, -1.5], [8, 9])
    assert body["claim"] is None


def test_a_mask_is_shown_as_numbers_and_a_nullable_array_as_numbers_or_null() -> None:
    nothing = Sequence(b"", b"", b"", b"", b"", ())
    one = Sequence(
        pack_ids([5]), b"\x01", pack_logprobs([0.25]), pack_ids([2]), b"\x00", (),
        old_logprobs=pack_logprobs([-2]),
    )  # fmt: skip

    assert plain(nothing)["old_logprobs"] is None
    assert plain(one)["loss_mask"] == [1]
    assert plain(one)["policy_index"] == [0]
    assert plain(one)["old_logprobs"] == [-2.0]


@pytest.mark.parametrize("given", ["control", "t.control"])
def test_a_topic_goes_by_its_name_with_and_without_the_prefix(
    given: str, cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.log.append("t.control", b"k", b"")

    assert len(lines(cluster, capsys, given)) == 1


def test_an_unknown_topic_is_refused_with_the_nearest(cluster: MemoryCluster) -> None:
    with pytest.raises(Refused, match=r"unknown topic 'rollout\.event'.*'rollout\.events'"):
        call(cluster, "tail", "rollout.event")


def test_a_cluster_without_topics_is_told_how_to_get_them() -> None:
    cluster = MemoryCluster()
    cluster.log.topics.clear()

    with pytest.raises(Refused, match="rollcall topics apply"):
        call(cluster, "tail", "control")


def test_a_foreign_topic_can_be_printed_but_not_decoded(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.log.create("theirs", 1)
    cluster.log.append("theirs", None, b"\x07")

    assert lines(cluster, capsys, "theirs")[0]["value"] == "07"
    with pytest.raises(Refused, match="no topic 'theirs' in the manifest"):
        lines(cluster, capsys, "theirs", decode=True)


@pytest.mark.parametrize(
    ("value", "shown", "error"),
    [
        (b"hello", "68656c6c6f", "BadMagic"),
        (b"\x00\x00\x00\x00\x63x", "000000006378", "UnknownSchema"),
        (None, None, "BadBytes"),
    ],
)
def test_what_cannot_be_decoded_is_shown_as_hex_with_the_error(
    value: bytes | None,
    shown: str | None,
    error: str,
    cluster: MemoryCluster,
    capsys: pytest.CaptureFixture[str],
) -> None:
    word = cluster.codec.encode("t.control", Control("pause"))
    cluster.log.append("t.control", b"bad", value)
    cluster.log.append("t.control", b"good", word)

    bad, good = lines(cluster, capsys, decode=True)

    assert bad["value"] == shown
    assert bad["error"].startswith(error)
    assert good["value"]["kind"] == "pause"


def test_a_dead_letter_is_read_as_a_message_of_the_topic_it_was_meant_for(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    word = cluster.codec.encode("t.control", Control("drain"))
    for source in (b"t.control", b"gone.topic"):
        cluster.log.append("t.dead.letters", b"k", word, 0, [("dlq_topic", source)])

    known, gone = lines(cluster, capsys, "dead.letters", decode=True)

    assert known["value"]["kind"] == "drain"
    assert gone["value"] == word.hex()


def test_the_last_records_are_those_of_all_partitions_together_by_time(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for second, partition in enumerate((2, 0, 1, 1, 0)):
        cluster.log.wall = lambda at=second: at
        cluster.log.append("t.env.steps", f"{second}".encode(), b"", partition)

    assert [line["key"] for line in lines(cluster, capsys, "env.steps", last=3)] == ["2", "3", "4"]
    assert len(lines(cluster, capsys, "env.steps", last=99)) == 5
    assert len(lines(cluster, capsys, "env.steps", limit=2)) == 2


def test_the_last_records_are_had_also_where_retention_has_passed_some_of_them(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(4):
        cluster.log.append("t.control", f"{number}".encode(), b"")
    cluster.log.delete_before("t.control", 0, 2)

    assert [line["key"] for line in lines(cluster, capsys, last=3)] == ["2", "3"]


def test_without_follow_it_ends_where_the_topic_did_and_with_it_it_waits_for_more(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.log.append("t.control", b"old", b"")

    class Later:
        """Somebody who writes whenever somebody reads."""

        def turn(self, timeout_s: float) -> int:
            del timeout_s
            cluster.log.append("t.control", b"new", b"")
            return 1

    cluster.log.crew = [Later()]

    followed = lines(cluster, capsys, last=1, follow=True, limit=4)

    assert [line["key"] for line in followed][-2:] == ["new", "new"]
    assert len(followed) == 4


def test_nobody_hears_of_a_reader_that_has_gone(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.log.append("t.control", b"k", b"")
    cluster.start(REQUEST)
    for words in (("tail", "control"), ("trajectory", "r")):
        reading, writing = os.pipe()
        os.close(reading)
        with open(writing, "w") as gone:
            monkeypatch.setattr(sys, "stdout", gone)
            call(cluster, *words)
            monkeypatch.undo()

    assert capsys.readouterr() == ("", "")


def test_an_interrupt_waits_for_the_poll_that_it_meets(cluster: MemoryCluster) -> None:
    cluster.log.append("t.control", b"k", b"")
    came_back = []

    class Pressed:
        """Somebody who presses Ctrl-C while the poll is under way."""

        def turn(self, timeout_s: float) -> int:
            del timeout_s
            signal.raise_signal(signal.SIGINT)
            came_back.append(True)
            return 0

    cluster.log.crew = [Pressed()]

    assert call(cluster, "tail", "control", "--follow") == 130
    assert came_back
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# A rollout as its journal tells it


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
    cluster.enter(at(EnvironmentStepped("a room"), 0))
    cluster.enter(at(SAID, 1))

    shown = page(cluster, capsys)

    assert "left  (2 tokens, mean log-prob -1.000, versions 8 to 9, stop)" in shown
    assert "still open: 1 turns, 2 tokens" in shown


def test_failures_and_new_attempts_are_shown_and_only_the_last_attempt_is_summed_up(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.start(REQUEST)
    cluster.enter(at(EnvironmentStepped("a room"), 0))
    cluster.enter(at(SAID, 1))
    cluster.enter(at(CallFailed("session_lost", "its worker died", False), 2))
    cluster.enter(at(AttemptStarted("its worker died"), attempt=2))
    cluster.enter(at(CallFailed("deadline", "no answer", True), 0, attempt=2))
    cluster.enter(at(EnvironmentStepped("another room"), 0, attempt=2, tries=1))
    cluster.enter(at(CallFailed("overloaded", "come back", True), 1, attempt=2))
    cluster.enter(at(SAID, 1, attempt=2, tries=1))
    cluster.enter(at(RolloutFinished("failed", "raised", "it fell"), attempt=2))

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
    cluster.enter(at(EnvironmentStepped("a room"), 0))
    cluster.enter(at(EnvironmentStepped("another room"), 0))
    cluster.start(REQUEST)
    cluster.enter(at(RolloutFinished("finished"), attempt=3))
    cluster.enter(at(RolloutCancelled("enough", "me")))
    cluster.enter(at(SAID, 1))

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
    cluster.enter(at(body))

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
    cluster.enter(at(EnvironmentStepped("a room"), 0))
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
    cluster.enter(at(replace(SAID, text="\x1b[2J[red]left[/red]"), 0))

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


@pytest.mark.parametrize("seed", range(40))
def test_counting_without_the_program_ignores_what_the_fold_ignores(seed: int) -> None:
    # Given journals with answers in any order, twice, late and by zombies, and their fold
    entries = Dice(Random(seed)).live().entries
    folded = Journal(0, world_of(DICED), "owner")
    expected: dict[str, list[bool]] = {}
    broken: set[str] = set()
    for entry in entries:
        taken = folded.take(entry.event, entry.offset, entry.at_ms)
        rollout_id = entry.event.rollout_id
        expected.setdefault(rollout_id, []).append(not taken.counted)
        rollout = folded.open.get(rollout_id)
        broken |= {rollout_id} if rollout and rollout.broken else set()

    # When each rollout is counted by itself
    found: dict[str, list[bool]] = {}
    counting: dict[str, Counting] = {}
    for entry in entries:
        rollout_id = entry.event.rollout_id
        ignored = counting.setdefault(rollout_id, Counting()).take(entry.event)
        found.setdefault(rollout_id, []).append(bool(ignored))

    # Then the same is ignored, but where only the program knows that it asked something else
    for rollout_id in expected.keys() - broken:
        assert found[rollout_id] == expected[rollout_id]
