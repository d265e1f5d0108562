"""Skipping records for a group: previewed, stored with user and reason, or refused."""

import pytest

from rollcall.consumers.history.replay.dead_letter_actions import NotReplayed
from rollcall.consumers.log.memory_source import MemorySource
from rollcall.consumers.loop.dead_letter_records import SkipOrder
from rollcall.consumers.loop.dead_letters import SkippedRecords
from rollcall.schemas.errors import Refused
from tests.support.command_line import call
from tests.support.journals import request
from tests.support.memory_cluster import MemoryCluster

AGENTS = "t.agents"
REQUESTS = "t.rollout.requests"
EVENTS = "t.rollout.events"


@pytest.fixture
def cluster() -> MemoryCluster:
    """Five records among the requests, of which one can be read, and agents that read none yet."""
    cluster = MemoryCluster()
    for n in range(5):
        value = cluster.codec.encode(REQUESTS, request("r", "react")) if n == 2 else b"{json}"
        cluster.log.append(REQUESTS, b"k", value, 1)
    cluster.log.group(AGENTS)
    return cluster


def skipped(cluster: MemoryCluster) -> list[SkipOrder]:
    passed = SkippedRecords(cluster.log, cluster.topics, AGENTS)
    passed.refresh()
    return passed.skips.get((REQUESTS, 1), [])


def ask(cluster: MemoryCluster, place: str, *, yes: bool = True, **given: str) -> None:
    told = {"group": "agents", "topic": "rollout.requests", "reason": "JSON by mistake", **given}
    group, topic, reason = told["group"], told["topic"], told["reason"]
    words = [group, topic, place, f"--reason={reason}", "--by=ann", *(["--yes"] if yes else [])]
    call(cluster, "dlq", "skip", *words)


def test_skip_without_yes_only_shows_the_records(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(cluster, "1@0-3", yes=False)

    said = capsys.readouterr().out
    assert "1@0  BadMagic: the value begins with b'{json'" in said
    assert "1@2  can be read" in said
    assert "3 BadMagic, 1 readable" in said
    assert f"{AGENTS} would pass over {REQUESTS} 1@0-3; nothing was done" in said
    assert skipped(cluster) == []


def test_skip_is_stored_with_user_and_reason_and_listed(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(cluster, "1@0-3")

    assert skipped(cluster) == [SkipOrder(AGENTS, REQUESTS, 1, 0, 3, "JSON by mistake", "ann")]
    capsys.readouterr()
    call(cluster, "dlq", "list")
    assert capsys.readouterr().out.strip() == "0 dead letters waiting, 1 ranges skipped"


@pytest.mark.parametrize(
    ("place", "given", "said"),
    [
        ("1@0-5", {}, "holds offsets from 0 to 4"),
        ("1@3-2", {}, "holds offsets from 0 to 4"),
        ("9@0", {}, "holds offsets from 0 to -1"),
        ("1", {}, "is no place"),
        ("1@0", {"reason": " "}, "say why with --reason"),
        ("1@0", {"group": "agent"}, "did you mean 't.agents'"),
        ("1@0", {"topic": "rollout.request"}, "did you mean 'rollout.requests'"),
    ],
)
def test_invalid_skip_is_refused(
    cluster: MemoryCluster, place: str, given: dict[str, str], said: str
) -> None:
    with pytest.raises(Refused, match=said):
        ask(cluster, place, **given)

    assert skipped(cluster) == []


def test_records_before_the_committed_offset_cannot_be_skipped(cluster: MemoryCluster) -> None:
    cluster.log.group(AGENTS).committed[REQUESTS, 1] = 3, ""

    with pytest.raises(Refused, match=r"t\.rollout\.requests 1@3,"):
        ask(cluster, "1@0-2")

    ask(cluster, "1@0-3")


def test_journal_is_skipped_only_without_members_and_uncounted(
    cluster: MemoryCluster,
) -> None:
    for _ in range(3):
        cluster.log.append(EVENTS, b"k", b"garbage", 1)
    cluster.log.group(AGENTS).committed[EVENTS, 1] = 1, ""

    with pytest.raises(Refused, match="1@1-2"):
        ask(cluster, "1@0-2", topic="rollout.events")
    member = object.__new__(MemorySource)
    member.positions = {}
    cluster.log.group(AGENTS).members.append(member)
    with pytest.raises(Refused, match="stop them all"):
        ask(cluster, "1@1-2", topic="rollout.events")
    cluster.log.group(AGENTS).members.clear()

    ask(cluster, "1@1-2", topic="rollout.events")


def test_truncated_dead_letter_is_not_replayed_as_complete(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.hire(lambda call: "left")
    cluster.log.append(REQUESTS, b"k", b"x" * 2_500_000, 0)
    cluster.finish()

    with pytest.raises(NotReplayed, match="1 letters cannot be replayed"):
        call(cluster, "dlq", "replay", "--all")

    assert f"it is not whole; what it was cut from is at {REQUESTS} 0@0" in capsys.readouterr().out
