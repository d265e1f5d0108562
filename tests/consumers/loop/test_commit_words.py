"""Commit metadata may come from anybody: it is read within bounds, or ignored."""

import base64
import tracemalloc
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.consumers.agents.watermark import Watermark, read_watermark
from rollcall.consumers.loop.finished_offsets import BITMAP_BYTES, finished_above, read_finished
from rollcall.consumers.loop.poison_detection import MOST_SUSPECTS, read_suspicion, split_metadata
from rollcall.inference.scripted import ScriptedEngine
from rollcall.schemas.bounded import LARGEST
from tests.support.avro_messages import FEW
from tests.support.hand_answers import ask
from tests.support.rig import Rig
from tests.support.whole_log import audited

PIECES = [
    "1;", "2;", ";", "!", "!r3", "!c2", ",7.1*", ",", ".", "*", "0", "7", "9" * 4000, "-1", "٣",
    "²", "AAAA", "eJw=", "é", "\x00", "q", base64.b64encode(b"\xff" * 40).decode(),
    base64.b64encode(zlib.compress(bytes(1 << 20), 9)).decode(),
]  # fmt: skip
words = st.lists(st.sampled_from(PIECES), max_size=8).map("".join) | st.text(max_size=40)


@given(words)
def test_any_commit_metadata_is_read_without_error(word: str) -> None:
    own, mark = split_metadata(word)
    suspicion = read_suspicion(mark, 0.0)
    watermark = read_watermark(own)
    finished = read_finished(own, 7)

    assert all(0 <= offset < 10**19 and n < 11 for offset, n in suspicion.deaths.items())
    assert watermark is None or 0 <= watermark.low <= watermark.bulk_low <= LARGEST
    assert finished is None or all(offset >= 7 for offset in list(finished)[:5])
    suspicion.mark(0, busy=True)


@given(
    st.lists(st.integers(0, 2**40), max_size=30).map(sorted),
    st.integers(2**40, LARGEST),
    st.none() | st.integers(0, LARGEST),
    st.sampled_from(["", "0", "uuid"]),
    st.booleans(),
)
def test_a_watermark_is_read_back_as_written(
    stragglers: list[int], bulk: int, last: int | None, requests: str, quota: bool
) -> None:
    written = Watermark(bulk, last, tuple(stragglers), requests, quota)

    assert read_watermark(written.write()) == written


@pytest.mark.parametrize("size", [BITMAP_BYTES + 1, 1 << 21])
def test_small_commit_metadata_does_not_unpack_to_millions_of_offsets(size: int) -> None:
    word = "1;" + base64.b64encode(zlib.compress(b"\xff" * size, 9)).decode()
    assert len(word) < 4095
    tracemalloc.start()

    assert finished_above(word, 0) == frozenset()

    assert tracemalloc.get_traced_memory()[1] < 2 << 20
    tracemalloc.stop()


@given(words, words, words)
@FEW
def test_workers_start_and_run_with_any_commit_metadata(one: str, two: str, three: str) -> None:
    # Given commits of all groups with any metadata
    rig = Rig()
    ask(rig, "r")
    topics = rig.topics
    for group, topic, word in (
        ("agents", topics.events, one),
        ("models.p", topics.calls("p"), two),
        ("environments", topics.steps, three),
    ):
        rig.log.group(f"t.{group}").committed[topic, 0] = 0, word[:4095]

    # When they begin
    crew = rig.agents(), rig.models(ScriptedEngine("p", lambda call: "yes")), rig.environments()
    rig.settle(*crew)
    rig.commit(*crew)

    # Then the rollout runs, and the audit reads them too
    assert [t.status for t in rig.trajectories()] == ["finished"]
    assert audited(rig, scorings=()).ok


def test_foreign_commit_metadata_is_reported_once(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.log.group("t.models.p").committed[rig.topics.calls("p"), 0] = 0, "written by another"
    loop: Any = rig.models(ScriptedEngine("p", lambda call: "yes"))
    for _ in range(3):
        rig.settle(loop)

    assert capsys.readouterr().out.count("commit_metadata_invalid") == 1


def test_excess_suspects_are_read_and_the_worst_are_rewritten() -> None:
    mark = "r3" + "".join(f",{n}.2" for n in range(100))

    assert read_suspicion(mark, 0.0).mark(0, busy=False).count(",") == MOST_SUSPECTS
