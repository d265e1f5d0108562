"""Conversations of other policies, as tokens of our own policy."""

from dataclasses import replace
from pathlib import Path

import pytest

from rollcall.inference.reencoding import Reencoder
from rollcall.schemas.messages import Message, ScoredTrajectory
from rollcall.schemas.packed import ids_of, mask_of
from tests.support.policies import lake, writer
from tests.support.scored_trajectories import scored, sequence

TALK = (
    Message("user", "s0"),
    Message("assistant", "R"),
    Message("user", "s1"),
    Message("assistant", "D"),
    Message("user", "s5"),
)
"""Two answers, and what was seen last, which nobody was told."""


def told_by_others(*messages: Message, answers: int) -> ScoredTrajectory:
    """Of tokens that mean nothing here."""
    theirs = sequence([900, 901] * max(answers, 1), [0, 1] * answers or [0, 0])
    return scored("r", sequences=(replace(theirs, messages=messages),), policies=("theirs",))


def retold(directory: Path, *messages: Message, answers: int = 2) -> ScoredTrajectory | None:
    return Reencoder(directory, "ours")(told_by_others(*messages, answers=answers))


def test_foreign_text_becomes_own_prompt_and_sampled_tokens(tmp_path: Path) -> None:
    made = retold(lake(tmp_path / "p"), *TALK)

    assert made is not None
    [ours] = made.trajectory.sequences or ()
    assert ids_of(ours.token_ids).tolist() == [0, 7, 1, 4, 8, 1, 3]
    assert mask_of(ours.loss_mask).tolist() == [0, 0, 0, 1, 0, 0, 1]
    assert (made.trajectory.policies, made.trajectory.sampled_tokens) == (("ours",), 2)


def test_a_retold_answer_includes_its_end_token(tmp_path: Path) -> None:
    directory = writer(tmp_path / "p")
    reads = Reencoder(directory, "ours")

    made = reads(told_by_others(Message("user", "a"), Message("assistant", "bc"), answers=1))

    assert made is not None
    [ours] = made.trajectory.sequences or ()
    sampled = ids_of(ours.token_ids)[mask_of(ours.loss_mask) == 1].tolist()
    assert len(sampled) == 3
    assert sampled[-1] in reads._template.end_ids


@pytest.mark.parametrize(
    ("messages", "answers"),
    [
        ((Message("user", "s0"), Message("assistant", "nowhere at all")), 1),
        ((Message("assistant", "R"), *TALK), 2),
        ((Message("user", "s0"), Message("assistant", "R", tool_calls="[]")), 1),
        ((Message("user", "s0"),), 0),
        ((Message("wizard", "s0"), Message("assistant", "R")), 1),
    ],
    ids=["no such word", "who said it", "a tool", "nothing said", "no such role"],
)
def test_text_that_the_policy_cannot_say_is_not_retold(
    tmp_path: Path, messages: tuple[Message, ...], answers: int
) -> None:
    assert retold(lake(tmp_path / "p"), *messages, answers=answers) is None


def test_a_rollout_of_two_policies_is_not_retold(tmp_path: Path) -> None:
    both = told_by_others(*TALK, answers=2)
    pair = replace(both, trajectory=replace(both.trajectory, policies=("a", "b")))

    assert Reencoder(lake(tmp_path / "p"), "ours")(pair) is None
