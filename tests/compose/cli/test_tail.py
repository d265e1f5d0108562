"""`rollcall tail`: records as lines of JSON; on the in-memory log."""

import json
import os
import signal
import sys
from typing import Any

import pytest

from rollcall.schemas.as_json import plain
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import (
    Control,
    RolloutRequest,
    Sequence,
    Task,
)
from rollcall.schemas.packed import pack_ids, pack_logprobs
from tests.support.command_line import call
from tests.support.journals import entry
from tests.support.memory_cluster import CORRIDOR, POLICY, SAID, MemoryCluster

REQUEST = RolloutRequest("r", Task(CORRIDOR, seed=7, prompt="Find the door."), policy_id=POLICY)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    monkeypatch.setenv("COLUMNS", "200")
    return MemoryCluster()


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


def test_record_is_shown_with_place_time_key_headers_and_bytes(
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


def test_decoded_record_shows_union_names_numbers_and_hex_ids(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.enter(entry(SAID, 3))

    [line] = lines(cluster, capsys, "rollout.events", decode=True)

    body = line["value"]["body"]["ModelAnswered"]
    assert line["value"]["command_id"] == "01" * 16
    assert (body["added_ids"], body["token_ids"]) == ([1, 2], [3, -4])
    assert (body["logprobs"], body["versions"]) == ([-0.5, -1.5], [8, 9])
    assert body["claim"] is None


def test_masks_are_shown_as_numbers_and_nullable_arrays_as_null() -> None:
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
def test_topic_is_found_with_and_without_its_prefix(
    given: str, cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.log.append("t.control", b"k", b"")

    assert len(lines(cluster, capsys, given)) == 1


def test_unknown_topic_is_refused_with_the_nearest(cluster: MemoryCluster) -> None:
    with pytest.raises(Refused, match=r"unknown topic 'rollout\.event'.*'rollout\.events'"):
        call(cluster, "tail", "rollout.event")


def test_cluster_without_topics_is_refused_with_the_apply_command() -> None:
    cluster = MemoryCluster()
    cluster.log.topics.clear()

    with pytest.raises(Refused, match="rollcall topics apply"):
        call(cluster, "tail", "control")


def test_foreign_topic_can_be_printed_but_not_decoded(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.log.create("theirs", 1)
    cluster.log.append("theirs", None, b"\x07")

    assert lines(cluster, capsys, "theirs")[0]["value"] == "07"
    with pytest.raises(Refused, match="'theirs'"):
        lines(cluster, capsys, "theirs", decode=True)


@pytest.mark.parametrize(
    ("value", "shown", "error"),
    [
        (b"hello", "68656c6c6f", "BadMagic"),
        (b"\x00\x00\x00\x00\x63x", "000000006378", "UnknownSchema"),
        (None, None, "BadBytes"),
    ],
)
def test_undecodable_value_is_shown_as_hex_with_the_error(
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


def test_dead_letter_is_decoded_by_its_source_topic(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    word = cluster.codec.encode("t.control", Control("drain"))
    for source in (b"t.control", b"gone.topic"):
        cluster.log.append("t.dead.letters", b"k", word, 0, [("dlq_topic", source)])

    known, gone = lines(cluster, capsys, "dead.letters", decode=True)

    assert known["value"]["kind"] == "drain"
    assert gone["value"] == word.hex()


def test_last_records_are_chosen_by_time_across_all_partitions(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for second, partition in enumerate((2, 0, 1, 1, 0)):
        cluster.log.wall = lambda at=second: at
        cluster.log.append("t.env.steps", f"{second}".encode(), b"", partition)

    assert [line["key"] for line in lines(cluster, capsys, "env.steps", last=3)] == ["2", "3", "4"]
    assert len(lines(cluster, capsys, "env.steps", last=99)) == 5
    assert len(lines(cluster, capsys, "env.steps", limit=2)) == 2


def test_last_records_are_found_although_retention_deleted_some(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(4):
        cluster.log.append("t.train.steps", f"{number}".encode(), b"", 0)
    cluster.log.delete_before("t.train.steps", 0, 2)

    found = lines(cluster, capsys, "train.steps", last=3)
    assert [line["key"] for line in found] == ["2", "3"]


def test_follow_waits_for_new_records_after_the_end(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.log.append("t.control", b"old", b"")

    class Later:
        """A writer that appends on every poll."""

        def turn(self, timeout_s: float) -> int:
            del timeout_s
            cluster.log.append("t.control", b"new", b"")
            return 1

    cluster.log.crew = [Later()]

    followed = lines(cluster, capsys, last=1, follow=True, limit=4)

    assert [line["key"] for line in followed][-2:] == ["new", "new"]
    assert len(followed) == 4


def test_closed_output_pipe_causes_no_error(
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


def test_interrupt_waits_for_the_current_poll(cluster: MemoryCluster) -> None:
    cluster.log.append("t.control", b"k", b"")
    came_back = []

    class Pressed:
        """A crew that raises Ctrl-C during the poll."""

        def turn(self, timeout_s: float) -> int:
            del timeout_s
            signal.raise_signal(signal.SIGINT)
            came_back.append(True)
            return 0

    cluster.log.crew = [Pressed()]

    assert call(cluster, "tail", "control", "--follow") == 130
    assert came_back
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
