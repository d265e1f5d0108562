"""Answers with tokens that differ from the sampled ones: evaluated, never trained."""

import json
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from rollcall.consumers.agents.effects import CallModel, Finish, Task, user
from rollcall.consumers.agents.fold.context import FoldContext
from rollcall.consumers.agents.fork import Past, RecordedAnswer
from rollcall.consumers.agents.programs import program_of
from rollcall.consumers.history.rollouts.fork_request import continuation, parent_in
from rollcall.consumers.history.rollouts.rollout_story import latest, stories
from rollcall.inference.scripted import ScriptedEngine
from rollcall.schemas.messages import ModelAnswered, ModelCall, ScoredTrajectory, Trajectory
from rollcall.schemas.packed import ids_of
from rollcall.trainer.config.curation import Curation
from rollcall.trainer.curation.judge import judge
from tests.support.journals import request, said
from tests.support.rig import Rig

CURATION = Curation("run", "p")


def twice(task: Task) -> Iterator[object]:
    """Two turns of one conversation."""
    first = [user("one")]
    answer = yield CallModel(first)
    yield CallModel([*first, answer.message, user("two")])  # type: ignore[attr-defined]
    yield Finish()


def lived(*marks: str) -> tuple[Rig, Trajectory]:
    """A rollout with a mark on each answer, scored by a rewards worker."""
    rig = Rig()

    def script(call: ModelCall) -> ModelAnswered:
        return replace(said(call, "yes", version=0), untrainable=marks[call.position])

    rig.ask(replace(request(agent=f"{__name__}:twice"), run_id="run", purpose="train"), partition=0)
    models = rig.models(ScriptedEngine("p", script))
    rig.settle(rig.agents(), models, rig.rewards())
    (trajectory,) = rig.trajectories()
    return rig, trajectory


@pytest.mark.parametrize("marks", [("no_token_ids", ""), ("", "no_logprobs")])
def test_a_sequence_with_an_untrainable_answer_is_fully_masked(marks: tuple[str, str]) -> None:
    rig, trajectory = lived(*marks)

    (sequence,) = trajectory.sequences or ()
    assert (trajectory.status, trajectory.model_calls, trajectory.sampled_tokens) == (
        "finished",
        2,
        6,
    )
    assert "".join(map(chr, ids_of(sequence.token_ids))) == "oneyestwoyes"
    assert set(sequence.loss_mask) == {0}
    assert set(sequence.policy_index) == {255}
    assert set(ids_of(sequence.versions).tolist()) == {-1}
    (scored,) = rig.read(rig.topics.scored, ScoredTrajectory)
    assert judge(replace(scored, total=1.0), 0, 0, CURATION).reason == "no_token_ids"


def test_a_sequence_of_trainable_answers_is_trained() -> None:
    rig, trajectory = lived("", "")

    (sequence,) = trajectory.sequences or ()
    assert sequence.loss_mask == bytes([0] * 3 + [1] * 3) * 2
    (scored,) = rig.read(rig.topics.scored, ScoredTrajectory)
    assert judge(replace(scored, total=1.0), 0, 0, CURATION).sample is not None


@pytest.mark.parametrize(("marks", "recorded"), [(("", ""), True), (("no_token_ids", ""), False)])
def test_a_continuation_of_an_untrainable_rollout_is_masked_so_far(
    marks: tuple[str, str], recorded: bool
) -> None:
    rig, _ = lived(*marks)
    journal = rig.log.all(rig.topics.events)[:-1]  # as far as it came before its end
    parent = parent_in(latest(stories("r", journal, rig.codec)), FoldContext(program_of, Random))

    past = Past.of(json.loads(continuation(parent).agent_config))

    assert [bool(each.logprobs) for each in past.recorded if isinstance(each, RecordedAnswer)] == [
        recorded
    ] * 2
