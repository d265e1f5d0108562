"""Rows compared with their messages."""

from collections.abc import Sequence as Many
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.consumers.log.protocols import Record
from rollcall.consumers.tables.parquet import LOT_BYTES, SCHEMAS, ParquetWriters, day_of
from rollcall.consumers.tables.rows import turn_rows
from rollcall.schemas.messages import (
    Message,
    RolloutRequest,
    ScoredTrajectory,
    Sequence,
    StepTaken,
    Task,
    Trajectory,
)
from rollcall.schemas.packed import ids_of, logprobs_of, pack_ids, pack_logprobs
from tests.support.avro_messages import FEW, any_message

AT_MS = 1_763_740_800_000
NAMES = {
    table: [name for name in schema.names if name not in ("started_at", "ended_at")]
    for table, schema in SCHEMAS.items()
}
"""Any 64 bits are a time in the schema, but not in Python."""


def written(
    messages: Many[Trajectory | ScoredTrajectory], folder: Path, lot_bytes: int = LOT_BYTES
) -> dict[str, list[dict[str, Any]]]:
    """The rows read back, by table, after each message was written as the record of its number."""
    writers = ParquetWriters(folder, "rows.parquet", "part", lot_bytes)
    for offset, message in enumerate(messages):
        record = Record("topic", 3, offset, b"k", b"v" * 100, AT_MS + offset * 60_000_000)
        put = writers.trajectory if isinstance(message, Trajectory) else writers.scored
        put(record, "id", message)  # type: ignore[operator]
    writers.finish()
    assert not list(folder.rglob(".*"))
    return {
        table: [
            row | {"day": path.parent.name}
            for path in sorted(folder.glob(f"{table}/*/*.parquet"))
            for row in pq.ParquetFile(path).read(columns=NAMES[table]).to_pylist()
        ]
        for table in ("trajectories", "turns", "scores")
    }


@FEW
@given(st.lists(any_message(Trajectory), max_size=2), st.sampled_from([1, LOT_BYTES]))
def test_a_trajectory_matches_its_row(messages: list[Trajectory], lot_bytes: int) -> None:
    with TemporaryDirectory() as folder:
        read = written(messages, Path(folder), lot_bytes)

    assert len(read["trajectories"]) == len(messages)
    for row, message in zip(read["trajectories"], messages, strict=True):
        appended = row["appended_at"]
        assert day_of(AT_MS + row["offset"] * 60_000_000) == row["day"] == f"day={appended.date()}"
        for name in ("rollout_id", "attempt", "status", "code", "result", "last_offset",
                     "model_calls", "failures", "sampled_tokens"):  # fmt: skip
            assert row[name] == getattr(message, name)
        assert tuple(row["policies"]) == message.policies
        asked, request = row["run_id"], message.request
        assert asked == (request.run_id if request else None)
        assert row["seed"] == (request.task.seed if request else None)
        versions = [int(v) for s in message.sequences or () for v in ids_of(s.versions)]
        assert row["version_max"] == max((v for v in versions if v >= 0), default=None)
        own = [turn for turn in read["turns"] if turn["offset"] == row["offset"]]
        assert [turn["line"] for turn in own] == list(range(len(own)))
        assert all(turn["rollout_id"] == message.rollout_id for turn in own)


@FEW
@given(any_message(Trajectory))
def test_every_message_and_step_is_in_exactly_one_turn(message: Trajectory) -> None:
    rows = list(turn_rows(message))

    said = [(row[3], row[4], row[5]) for row in rows if row[3] is not None]
    took = [(row[8], row[9], row[10], row[11], row[12]) for row in rows if row[8] is not None]
    assert said == [
        (m.role, m.content, m.tool_calls) for s in message.sequences or () for m in s.messages
    ]
    steps = [(s.position, s.session, s.action, s.text, s.reward) for s in message.steps or ()]
    assert sorted(took, key=repr) == sorted(steps, key=repr)


@FEW
@given(st.lists(any_message(ScoredTrajectory), max_size=2))
def test_scores_match_their_rows(messages: list[ScoredTrajectory]) -> None:
    with TemporaryDirectory() as folder:
        read = written(messages, Path(folder))

    for row, message in zip(read["scores"], messages, strict=True):
        assert (row["scoring_id"], row["total"]) == (message.scoring_id, message.total)
        assert row["rollout_id"] == message.trajectory.rollout_id
        assert [tuple(each.values()) for each in row["rewards"]] == [
            (each.scorer, each.value, each.weight, each.reason) for each in message.rewards
        ]
        assert [tuple(each.values()) for each in row["token_scores"]] == [
            (each.scorer, each.sequence, pytest.approx(logprobs_of(each.scores), nan_ok=True))
            for each in message.token_scores
        ]
        place = (row["source_topic"], row["source_partition"], row["source_offset"])
        assert place == (message.source_topic, message.source_partition, message.source_offset)


def conversation(*words: str, sampled: Many[int] = ()) -> Sequence:
    """Messages that the user begins, in turns; each answer has so many tokens, each question 2."""
    roles = ("user", "assistant")
    mask = [bit for count in sampled for bit in [0, 0] + [1] * count]
    return Sequence(
        token_ids=pack_ids(mask),
        loss_mask=bytes(mask),
        behaviour_logprobs=pack_logprobs(map(float, mask)),
        versions=pack_ids(bit - 1 for bit in mask),
        policy_index=bytes(mask),
        messages=tuple(Message(roles[n % 2], word) for n, word in enumerate(words)),
    )


def step(position: int, action: str | None, text: str) -> StepTaken:
    return StepTaken(position, "main", action, text, 0.5, False, False)


def trajectory(
    sequences: tuple[Sequence, ...] | None, *steps: StepTaken, failures: int = 0
) -> Trajectory:
    asked = RolloutRequest("r", Task())
    places = (0, 0, 9, 10, 20)
    return Trajectory("r", 1, "finished", asked, ("p",), sequences, steps, 2, 3, failures, *places)


def told(message: Trajectory) -> list[tuple[Any, ...]]:
    """Turn, message, sampled tokens and observation."""
    return [(row[1], row[4], row[7], row[11]) for row in turn_rows(message)]


THINKS_TWICE = conversation("q", "think", "go on", "act", sampled=(3, 4))


def test_a_step_shares_the_line_of_the_answer_before_it() -> None:
    assert told(trajectory((THINKS_TWICE,), step(0, None, "q"), step(3, "act", "seen"))) == [
        (0, None, None, "q"),
        (1, "q", None, None),
        (1, "think", 3, None),
        (2, "go on", None, None),
        (2, "act", 4, "seen"),
    ]


def test_two_steps_after_one_answer_have_two_lines() -> None:
    assert told(trajectory((THINKS_TWICE,), step(1, "a", "one"), step(2, "b", "two")))[1:3] == [
        (1, "think", 3, "one"),
        (1, None, None, "two"),
    ]


@pytest.mark.parametrize(
    "message",
    [
        trajectory((THINKS_TWICE,) * 2, step(0, None, "q"), step(3, "act", "seen")),
        trajectory((THINKS_TWICE,), step(0, None, "q"), step(2, "act", "seen"), failures=1),
        trajectory((THINKS_TWICE,), step(0, None, "q"), step(9, "act", "seen")),
    ],
    ids=["two conversations", "a call that may have failed for good", "more calls than answers"],
)
def test_a_step_with_an_ambiguous_predecessor_has_its_own_line(
    message: Trajectory,
) -> None:
    *_, first, last = told(message)

    assert (first[0], first[1], first[3]) == (0, None, "q")
    assert (last[1], last[3]) == (None, "seen")


def test_token_counts_are_missing_if_messages_and_mask_disagree() -> None:
    prompted = conversation("q", "an example", "q", "answer", sampled=(4,))

    assert [row[2] for row in told(trajectory((prompted,)))] == [None] * 4
    assert [row[1] for row in told(trajectory((prompted,)))] == ["q", "an example", "q", "answer"]


def test_a_bare_trajectory_has_a_row_and_no_turns(tmp_path: Path) -> None:
    bare = trajectory(None)
    bare = Trajectory(*[getattr(bare, n) if n != "steps" else None for n in Trajectory.__slots__])

    read = written([bare], tmp_path)

    assert [row["environment_steps"] for row in read["trajectories"]] == [None]
    assert read["turns"] == []


def test_equal_rows_give_equal_files(tmp_path: Path) -> None:
    messages = [trajectory((THINKS_TWICE,), step(0, None, "q"))] * 20
    for name in ("one", "two"):
        written(messages, tmp_path / name, 5000)

    def files(name: str) -> dict[str, bytes]:
        root = tmp_path / name
        return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*.parquet")}

    assert files("one") == files("two") != {}
