"""Dead letters on the in-memory log: listed, shown, replayed, dropped."""

import json
from collections import Counter
from dataclasses import dataclass, field

import pytest

from rollcall.consumers.history.reading.rate_limit import RateLimit
from rollcall.consumers.history.replay.dead_letter_actions import NotReplayed
from rollcall.consumers.history.replay.dead_letter_index import DeadLetterIndex, select_dead_letters
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.dead_letters import DeadLetters
from rollcall.schemas.errors import BadMagic, Refused, WireError
from rollcall.schemas.messages import Control
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
    """The number of dead letters in each state; the empty state means waiting."""
    return Counter(letter.state for letter in DeadLetterIndex(cluster).letters.values())


def place(cluster: MemoryCluster, nth: int = 0) -> str:
    letter = [r for r in cluster.log.all(LETTERS) if r.value is not None][nth]
    return f"{letter.partition}@{letter.offset}"


def test_dead_letter_is_listed_with_place_source_group_and_error(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    bury(cluster)

    _, row, total = listed(cluster, capsys)

    assert row.startswith(place(cluster))
    assert f"{REQUESTS} 1@7" in row
    assert "t.agents" in row
    assert "BadMagic: the value begins with b'bytes'" in row
    assert total.startswith("1 dead letters waiting;")


def test_record_buried_repeatedly_is_one_dead_letter(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    bury(cluster)
    bury(cluster)
    bury(cluster, group="t.archive")

    _, row, total = listed(cluster, capsys)

    assert "t.agents, t.archive" in row
    assert total.startswith("1 dead letters waiting")


def test_list_is_filtered_by_source_error_and_time(
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
def test_unknown_filter_is_refused(
    cluster: MemoryCluster, given: dict[str, str], said: str
) -> None:
    with pytest.raises(Refused, match=said):
        call(cluster, "dlq", "list", *options(**given))


@pytest.mark.parametrize("text", ["7", "@7", "0@", "a@b", "0@7-", "-1@3"])
def test_invalid_dead_letter_place_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="PARTITION@OFFSET"):
        select_dead_letters([text], source="", error="", since="", every=False)


def test_empty_selection_is_refused() -> None:
    with pytest.raises(Refused, match="--all"):
        select_dead_letters([], source="", error="", since="", every=False)


def test_dead_letter_is_shown_with_all_headers_and_undecodable_bytes(
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


def test_dead_letter_that_has_become_readable_is_shown_decoded(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    value = cluster.codec.encode("t.control", Control("pause", reason="lunch"))
    bury(cluster, topic="t.control", value=value)

    capsys.readouterr()
    call(cluster, "dlq", "show", place(cluster))

    assert json.loads(capsys.readouterr().out)["value"]["reason"] == "lunch"


@pytest.mark.parametrize("text", ["0@99", "9@0"])
def test_missing_dead_letter_is_refused(cluster: MemoryCluster, text: str) -> None:
    with pytest.raises(Refused, match="no dead letters"):
        call(cluster, "dlq", "show", text)
    bury(cluster)
    with pytest.raises(Refused, match=f"unknown dead letter '{text}'"):
        call(cluster, "dlq", "show", text)


def test_dry_run_changes_nothing(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    bury(cluster)

    call(cluster, "dlq", "replay", "--all")
    call(cluster, "dlq", "drop", "--all")

    assert cluster.log.all(REQUESTS) == []
    assert len(cluster.log.all(LETTERS)) == 1
    assert f"would send {place(cluster)}, from {REQUESTS} 1@7" in capsys.readouterr().out


def test_replayed_dead_letter_equals_the_original_record(cluster: MemoryCluster) -> None:
    bury(cluster)

    call(cluster, "dlq", "replay", "--all", "--yes")

    (record,) = cluster.log.all(REQUESTS)
    assert (record.partition, record.key, record.value) == (1, b"k", b"bytes")
    assert record.headers == [
        ("mine", b"1"),
        ("mine", b"2"),
        ("dlq_replayed_from", f"{LETTERS} {place(cluster)}".encode()),
    ]


def test_dead_letter_is_replayed_once_unless_again_is_given(
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


def test_dropped_dead_letter_is_neither_listed_nor_replayed(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    bury(cluster, 1)
    bury(cluster, 2)

    call(cluster, "dlq", "drop", place(cluster), "--yes")
    call(cluster, "dlq", "replay", "--all", "--yes", "--again")

    assert len(cluster.log.all(REQUESTS)) == 1
    assert states(cluster) == {"replayed": 1, "dropped": 1}
    assert listed(cluster, capsys) == ["0 dead letters waiting, 1 replayed, 1 dropped"]


def test_record_buried_after_its_replay_is_a_new_dead_letter(
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


def test_dead_letter_rejected_by_its_topic_stays_and_is_named(
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


def test_foreign_record_in_the_dead_letter_topic_is_not_a_letter(cluster: MemoryCluster) -> None:
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


def test_pace_limits_records_per_second() -> None:
    watch = Watch()
    pace = RateLimit(4.0, lambda: watch.now, watch.sleep)

    for _ in range(9):
        pace.wait()

    assert watch.now == 2.0


def test_pace_without_a_rate_does_not_sleep() -> None:
    watch = Watch()
    pace = RateLimit(0.0, lambda: watch.now, watch.sleep)

    for _ in range(9):
        pace.wait()

    assert watch.slept == []
