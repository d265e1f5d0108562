"""Trajectories, their turns and their scores as rows, record by record as in the log.

A record on `trajectories` is one row of the table `trajectories`, and one row for each of its turns
in `turns`; a record on `trajectories.scored` is one row of `scores`. A row depends only on its
record, so writing a range of the log again gives the same rows. Repeated records are repeated rows;
the views of `rollcall query` show the ones that count.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import astuple
from operator import attrgetter
from typing import Any

import numpy as np

from rollcall.consumers.log.protocols import Record
from rollcall.schemas.messages import (
    Message,
    RolloutRequest,
    ScoredTrajectory,
    Sequence,
    StepTaken,
    Trajectory,
)
from rollcall.schemas.packed import IDS, logprobs_of

Row = tuple[Any, ...]

PLACE: Mapping[str, str] = {
    "topic_id": "string",
    "partition": "int32",
    "offset": "int64",
    "appended_at": "time",
}
"""The place of the record in the log, and its append time."""
KEY: Mapping[str, str] = {
    "rollout_id": "string",
    "attempt": "int32",
    "journal_partition": "int32",
    "last_offset": "int64",
}
"""The end of a rollout: records with the same key hold the same trajectory."""
TRAJECTORIES: Mapping[str, str] = {
    **PLACE, **KEY, "run_id": "string", "policy_id": "string", "group_id": "string",
    "group_size": "int32", "purpose": "string", "user": "string", "agent": "string",
    "environment": "string", "environment_config": "string", "task_id": "string", "seed": "int64",
    "prompt": "string", "temperature": "float64", "min_policy_version": "int64",
    "status": "string", "code": "string", "reason": "string", "result": "string",
    "model_calls": "int32", "failures": "int32", "environment_steps": "int32",
    "environment_return": "float64", "sequences": "int32", "tokens": "int64",
    "sampled_tokens": "int64", "version_min": "int64", "version_max": "int64",
    "engine": "string", "precision": "string", "policies": "strings", "first_offset": "int64",
    "started_at": "time", "ended_at": "time", "seconds": "float64",
    "submission_s": "float64", "scheduling_s": "float64", "environment_start_s": "float64",
    "execution_s": "float64",
}  # fmt: skip
OWNERS: Mapping[str, str] = {**PLACE, **KEY, "run_id": "string", "policy_id": "string"}
"""The columns that a turn takes from its trajectory."""
TURNS: Mapping[str, str] = {
    "line": "int32", "turn": "int32", "sequence": "int32", "role": "string", "content": "string",
    "tool_calls": "string", "prompt_tokens": "int32", "sampled_tokens": "int32",
    "position": "int32", "session": "string", "action": "string", "observation": "string",
    "reward": "float64", "terminated": "bool", "truncated": "bool", "done": "bool",
}  # fmt: skip
SCORES: Mapping[str, str] = {
    **PLACE, **KEY, "run_id": "string", "policy_id": "string", "scoring_id": "string",
    "total": "float64", "reason": "string", "rewards": "rewards", "source_topic": "string",
    "source_partition": "int32", "source_offset": "int64", "token_scores": "token_scores",
}  # fmt: skip

ANSWER = re.compile(rb"(\x00*)(\x01+)")
"""Matches in a loss mask the tokens that a call added to the prompt, and the sampled ones."""
NO_REQUEST = (None,) * 14
NO_CALL = (None, None)
NO_STEP = (None,) * 8
NO_TIMERS = (None,) * 4


def place_of(record: Record, topic_id: str) -> Row:
    """Return the columns of PLACE for a record."""
    appended = record.timestamp_ms if record.timestamp_ms >= 0 else None
    return topic_id, record.partition, record.offset, appended


def key_of(trajectory: Trajectory) -> Row:
    """Return the columns of KEY for a trajectory."""
    place = trajectory.journal_partition, trajectory.last_offset
    return trajectory.rollout_id, trajectory.attempt, *place


def trajectory_row(place: Row, trajectory: Trajectory) -> Row:
    """Return one row, by TRAJECTORIES."""
    steps, sequences = trajectory.steps, trajectory.sequences
    versions = versions_of(sequences or ())
    first = sequences[0] if sequences else None
    return (
        *place,
        *key_of(trajectory),
        *_request_columns(trajectory.request),
        trajectory.status,
        trajectory.code,
        trajectory.reason,
        trajectory.result,
        trajectory.model_calls,
        trajectory.failures,
        None if steps is None else len(steps),
        None if steps is None else sum(step.reward for step in steps),
        None if sequences is None else len(sequences),
        None if sequences is None else sum(len(each.loss_mask) for each in sequences),
        trajectory.sampled_tokens,
        *versions,
        first.engine if first else None,
        first.precision if first else None,
        trajectory.policies,
        trajectory.first_offset,
        trajectory.started_ms,
        trajectory.ended_ms,
        (trajectory.ended_ms - trajectory.started_ms) / 1000,
        *(NO_TIMERS if trajectory.timers is None else astuple(trajectory.timers)),
    )


def _request_columns(request: RolloutRequest | None) -> Row:
    if request is None:
        return NO_REQUEST
    task = request.task
    return (
        request.run_id,
        request.policy_id,
        request.group_id,
        request.group_size,
        request.purpose,
        request.user,
        request.agent,
        task.environment,
        task.environment_config,
        task.task_id,
        task.seed,
        task.prompt,
        request.sampling.temperature,
        request.min_policy_version,
    )


def versions_of(sequences: tuple[Sequence, ...]) -> tuple[int | None, int | None]:
    """Return the oldest and the newest version that sampled a token; None if none was sampled."""
    packed = b"".join(each.versions for each in sequences)
    if not packed:
        return None, None
    versions = np.frombuffer(packed, IDS)
    newest = int(versions.max())
    if newest < 0:
        return None, None
    # Tokens that were not sampled have version -1, the largest unsigned number.
    return int(versions.view("<u4").min()), newest


def turn_rows(trajectory: Trajectory) -> Iterator[Row]:
    """Yield rows by TURNS: the messages of each conversation in order, with the resulting steps.

    A turn is an answer of the model, the messages that were new to it, and the following step of
    the environment; steps before the first answer's messages are turn 0. If a trajectory does not
    tell which answer a step followed (several conversations, a call that failed for good), the
    steps have rows of their own after the messages.
    """
    steps = trajectory.steps or ()
    sequences = trajectory.sequences or ()
    lines = _lines(sequences, steps, trajectory.failures)
    for line, (turn, index, message, counts, step) in enumerate(lines):
        texts = (message.role, message.content, message.tool_calls) if message else (None,) * 3
        yield (line, turn, index, *texts, *counts, *(_seen(step) if step else NO_STEP))


def _seen(step: StepTaken) -> Row:
    done = step.terminated or step.truncated
    seen = (step.position, step.session, step.action, step.text, step.reward)
    return (*seen, step.terminated, step.truncated, done)


TurnLine = tuple[int, "int | None", "Message | None", Row, "StepTaken | None"]


def _lines(
    sequences: tuple[Sequence, ...], steps: tuple[StepTaken, ...], failures: int
) -> Iterator[TurnLine]:
    counts = [_counts(each) for each in sequences]
    if len(sequences) == 1 and counts[0] is not None:
        after = _followers(steps, len(counts[0]), failures)
        if after is not None:
            yield from _interleaved(sequences[0], counts[0], after)
            return
    turn = 1
    for index, (sequence, known) in enumerate(zip(sequences, counts, strict=True)):
        answers = iter(known or ())
        for message in sequence.messages:
            answered = message.role == "assistant"
            yield turn, index, message, next(answers, NO_CALL) if answered else NO_CALL, None
            turn += answered
    for step in steps:
        yield 0 if step.action is None else turn - 1, None, None, NO_CALL, step


def _counts(sequence: Sequence) -> list[Row] | None:
    """Return tokens read and sampled, by answer; None if messages and mask do not agree."""
    counts = [(len(m[1]), len(m[2])) for m in ANSWER.finditer(sequence.loss_mask)]
    spoken = sum(message.role == "assistant" for message in sequence.messages)
    return counts if len(counts) == spoken else None


def _followers(
    steps: tuple[StepTaken, ...], answers: int, failures: int
) -> list[list[StepTaken]] | None:
    """Return the steps before the first answer and after each; None if positions do not tell.

    Steps and answers share one sequence of positions, so a position without a step is an answer.
    """
    followers: list[list[StepTaken]] = [[] for _ in range(answers + 1)]
    gaps, expected = 0, 0
    for step in sorted(steps, key=attrgetter("position")):
        gaps += step.position - expected
        expected = step.position + 1
        if not 0 <= gaps <= answers:
            return None
        followers[gaps].append(step)
    # A call that failed for good leaves a gap too, which an answer without a step would hide.
    return None if failures and gaps < answers else followers


def _interleaved(
    sequence: Sequence, counts: list[Row], after: list[list[StepTaken]]
) -> Iterator[TurnLine]:
    for step in after[0]:
        yield 0, None, None, NO_CALL, step
    turn = 1
    for message in sequence.messages:
        if message.role != "assistant":
            yield turn, 0, message, NO_CALL, None
            continue
        yield turn, 0, message, counts[turn - 1], next(iter(after[turn]), None)
        for step in after[turn][1:]:
            yield turn, None, None, NO_CALL, step
        turn += 1


def score_row(place: Row, scored: ScoredTrajectory) -> Row:
    """Return one row, by SCORES."""
    return (
        *place,
        *key_of(scored.trajectory),
        *_request_columns(scored.trajectory.request)[:2],
        scored.scoring_id,
        scored.total,
        scored.reason,
        [(each.scorer, each.value, each.weight, each.reason) for each in scored.rewards],
        scored.source_topic,
        scored.source_partition,
        scored.source_offset,
        [(each.scorer, each.sequence, logprobs_of(each.scores)) for each in scored.token_scores],
    )
