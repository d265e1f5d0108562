"""Dead letters on the in-memory log: listed, shown, replayed, dropped."""

import json
from collections import Counter
from dataclasses import dataclass, field

import pytest

from consumers.history.dead_letter_index import DeadLetterIndex, choice_of
from consumers.history.dead_letter_replay import NotReplayed
from consumers.history.rate_limit import Pace
from consumers.log.protocols import Record
from consumers.loop.dead_letters import DeadLetters
from schemas.errors import BadMagic, Refused, WireError
from schemas.messages import Control
from tests.support.command_line import call, options
from tests.support.memory_cluster import MemoryCluster

LETTERS = "t.dead.letters"
REQUESTS = "t.rollout.requests"


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster()


def bury(
    cluster: MemoryCluster,
    offset: int = 7,
    *,
    topic: str = REQUESTS,
    value: bytes | None = b"bytes",
    key: bytes | None = b"k",
    group: str = "t.agents",
    error: WireError | None = None,
) -> None:
    """Bury a record of partition 1 as a group's loop does."""
    headers = [("mine", b"1"), ("mine", b"2")]
    record = Record(topic, 1, offset, key, value, 5, headers)
    letters = DeadLetters(cluster.log.publisher(), cluster.topics, group, lambda: 0.0, cluster.log)
    letters.bury(record, error or BadMagic(b"bytes"))


def listed(cluster: MemoryCluster, capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    capsys.readouterr()
    call(cluster, "dlq", "list", *words)
    return capsys.readouterr().out.splitlines()


def states(cluster: MemoryCluster) -> dict[str, int]:
    """How many letters there are in each state; empty is that they wait."""
    return Counter(letter.state for letter in DeadLetterIndex(cluster).letters.values())


def place(cluster: MemoryCluster, nth: int = 0) -> str:
    letter = [r for r in cluster.log.all(LETTERS) if r.value is not None][nth]
    return f"{letter.partition}@{letter.offset}"


def test_a_letter_is_listed_with_where_who_and_why(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    bury(cluster)

    _, row, total = listed(cluster, capsys)

    assert row.startswith(place(cluster))
    assert f"{REQUESTS} 1@7" in row
    assert "t.agents" in row
    assert "BadMagic: the value begins with b'bytes'" in row
    assert total.startswith("1 dead letters waiting;")


def test_a_record_that_was_buried_more_than_once_is_one_letter(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    bury(cluster)
    bury(cluster)
    bury(cluster, group="t.archive")

    _, row, total = listed(cluster, capsys)

    assert "t.agents, t.archive" in row
    assert total.startswith("1 dead letters waiting")


def test_a_list_is_narrowed_by_source_error_and_time(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.log.wall = lambda: 1_000.0
    bury(cluster, 1)
    cluster.log.wall = lambda: 2_000.0
    bury(cluster, 2, topic="t.env.steps", error=WireError("odd"))

    def offsets(**given: str) -> list[str]:
        return [
            line.split(" 1@")[1].split()[0]
            for line in listed(cluster, capsys, *options(**given))
            if " 1@" in line
        ]

    assert offsets() == ["1", "2"]
    assert offsets(source="env.steps") == offsets(source="t.env.steps") == ["2"]
    assert offsets(error="BadMagic") == ["1"]
    assert offsets(since="1970-01-01T00:20:00") == ["2"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"source": "env.step"}, "did you mean 'env.steps'"),
        ({"error": "BadMagik"}, "did you mean 'BadMagic'"),
        ({"since": "soon"}, "no time"),
    ],
)
def test_a_filter_that_nobody_knows_is_refused(
    cluster: MemoryCluster, given: dict[str, str], said: str
) -> None:
    with pytest.raises(Refused, match=said):
        call(cluster, "dlq", "list", *options(**given))


@pytest.mark.parametrize("text", ["7", "@7", "0@", "a@b", "0@7-", "-1@3"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="PARTITION@OFFSET"):
        choice_of([text], source="", error="", since="", every=False)


def test_nothing_is_replayed_or_dropped_where_nothing_was_chosen() -> None:
    with pytest.raises(Refused, match="--all"):
        choice_of([], source="", error="", since="", every=False)


def test_a_letter_is_shown_with_all_headers_and_the_bytes_that_nobody_could_read(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    bury(cluster)

    capsys.readouterr()
    call(cluster, "dlq", "show", place(cluster))

    told = json.loads(capsys.readouterr().out)
    assert told["headers"]["mine"] == ["1", "2"]
    assert told["headers"]["dlq_offset"] == "7"
    assert told["value"] == b"bytes".hex()
    assert told["error"].startswith("BadMagic")
    assert told["state"] == "waits"


def test_a_letter_that_can_be_read_by_now_is_shown_decoded(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    value = cluster.codec.encode("t.control", Control("pause", reason="lunch"))
    bury(cluster, topic="t.control", value=value)

    capsys.readouterr()
    call(cluster, "dlq", "show", place(cluster))

    assert json.loads(capsys.readouterr().out)["value"]["reason"] == "lunch"


@pytest.mark.parametrize("text", ["0@99", "9@0"])
def test_a_letter_that_is_not_there_is_refused(cluster: MemoryCluster, text: str) -> None:
    with pytest.raises(Refused, match="no dead letters"):
        call(cluster, "dlq", "show", text)
    bury(cluster)
    with pytest.raises(Refused, match=f"unknown dead letter '{text}'"):
        call(cluster, "dlq", "show", text)


def test_a_dry_run_changes_nothing(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    bury(cluster)

    call(cluster, "dlq", "replay", "--all")
    call(cluster, "dlq", "drop", "--all")

    assert cluster.log.all(REQUESTS) == []
    assert len(cluster.log.all(LETTERS)) == 1
    assert f"would send {place(cluster)}, from {REQUESTS} 1@7" in capsys.readouterr().out


def test_a_replayed_letter_is_what_it_was_before_it_was_buried(cluster: MemoryCluster) -> None:
    bury(cluster)

    call(cluster, "dlq", "replay", "--all", "--yes")

    (record,) = cluster.log.all(REQUESTS)
    assert (record.partition, record.key, record.value) == (1, b"k", b"bytes")
    assert record.headers == [
        ("mine", b"1"),
        ("mine", b"2"),
        ("dlq_replayed_from", f"{LETTERS} {place(cluster)}".encode()),
    ]


def test_a_letter_is_replayed_once_unless_it_is_asked_for_again(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    bury(cluster)
    bury(cluster)
    for _ in range(2):
        call(cluster, "dlq", "replay", "--all", "--yes")
    assert len(cluster.log.all(REQUESTS)) == 1
    assert states(cluster) == {"replayed": 1}
    assert "replayed" in listed(cluster, capsys, "--all")[1]

    call(cluster, "dlq", "replay", "--all", "--yes", "--again")

    assert len(cluster.log.all(REQUESTS)) == 2


def test_a_dropped_letter_is_neither_listed_nor_replayed_again_or_not(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    bury(cluster, 1)
    bury(cluster, 2)

    call(cluster, "dlq", "drop", place(cluster), "--yes")
    call(cluster, "dlq", "replay", "--all", "--yes", "--again")

    assert len(cluster.log.all(REQUESTS)) == 1
    assert states(cluster) == {"replayed": 1, "dropped": 1}
    assert listed(cluster, capsys) == ["0 dead letters waiting, 1 replayed, 1 dropped"]


def test_a_record_that_is_buried_again_after_its_replay_is_a_letter_of_its_own(
    cluster: MemoryCluster,
) -> None:
    bury(cluster, 1)
    call(cluster, "dlq", "replay", "--all", "--yes")
    (record,) = cluster.log.all(REQUESTS)
    letters = DeadLetters(
        cluster.log.publisher(), cluster.topics, "t.agents", lambda: 0.0, cluster.log
    )

    letters.bury(record, BadMagic(b"bytes"))
    call(cluster, "dlq", "replay", "--all", "--yes")

    last = cluster.log.all(REQUESTS)[-1]
    names = [name for name, _ in last.headers or []]
    assert names == ["mine", "mine", "dlq_replayed_from"]
    assert states(cluster) == {"replayed": 2}


def test_a_letter_whose_topic_is_gone_or_refuses_it_stays_and_is_named(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    bury(cluster, 1, topic="t.model.calls.gone")
    bury(cluster, 2, value=b"x" * 1_500_000)
    bury(cluster, 3)

    with pytest.raises(NotReplayed, match="2 letters"):
        call(cluster, "dlq", "replay", "--all", "--yes")

    said = capsys.readouterr().out
    assert "t.model.calls.gone 1 is not there" in said
    assert "above the limit" in said
    assert "1 letter replayed" in said
    assert states(cluster) == {"": 2, "replayed": 1}


def test_what_others_wrote_there_is_no_letter(cluster: MemoryCluster) -> None:
    cluster.log.append(LETTERS, b"k", b"v")

    index = DeadLetterIndex(cluster)
    assert (index.letters, index.foreign) == ({}, 1)


@dataclass
class Watch:
    now: float = 0.0
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_a_pace_lets_so_many_through_a_second() -> None:
    watch = Watch()
    pace = Pace(4.0, lambda: watch.now, watch.sleep)

    for _ in range(9):
        pace.wait()

    assert watch.now == 2.0


def test_without_a_rate_nobody_waits() -> None:
    watch = Watch()
    pace = Pace(0.0, lambda: watch.now, watch.sleep)

    for _ in range(9):
        pace.wait()

    assert watch.slept == []
