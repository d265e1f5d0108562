"""More rollouts run than a batch takes; unfinished ones continue, and none is lost."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rollcall.consumers.agents.fork import Past, RecordedAnswer, RecordedObservation
from rollcall.consumers.audit.audit import audit
from rollcall.consumers.training.rollout_continuation import INTERRUPT_S
from rollcall.producers.admission import AdmissionRule
from rollcall.schemas.errors import Refused
from rollcall.schemas.ids import continued_id, split_continued_id
from rollcall.schemas.messages import UNFINISHED, Control, ScoredTrajectory, Sequence, Trajectory
from rollcall.schemas.packed import ids_of, logprobs_of, mask_of, pack_ids, pack_logprobs
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.rules.samples import versions_of
from tests.support.changed_config import changed
from tests.support.staged_run import CONFIG, Stage
from tests.support.tiers import cases
from tests.support.tiny_run import RECIPE, World
from tests.support.uneven_run import UnevenRun

DOUBLE = LearnerConfig(
    steps=6, groups_per_step=2, group_size=2, over_provision=2.0, max_staleness=4
)


def columns(sequence: Sequence) -> list[list[float]]:
    """Ids, mask, log-probabilities, versions and policies, token by token."""
    return np.stack([
        ids_of(sequence.token_ids), mask_of(sequence.loss_mask),
        logprobs_of(sequence.behaviour_logprobs), ids_of(sequence.versions),
        mask_of(sequence.policy_index),
    ]).T.tolist()  # fmt: skip


def of_generations(run: UnevenRun) -> dict[str, list[Trajectory]]:
    """All trajectories of a rollout, by its first id, in order."""
    found: dict[str, list[Trajectory]] = {}
    for each in sorted(run.trajectories(), key=lambda t: split_continued_id(t.rollout_id)[1]):
        found.setdefault(split_continued_id(each.rollout_id)[0], []).append(each)
    return {base: lives for base, lives in found.items() if len(lives) > 1}


def trained(run: UnevenRun) -> list[str]:
    """By their first ids."""
    return [
        split_continued_id(ref.rollout_id)[0] for step in run.steps() for ref in step.trajectories
    ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> UnevenRun:
    run = UnevenRun(tmp_path_factory.mktemp("run"), DOUBLE)
    run.train(6)
    run.settle()
    run.close()
    return run


def test_twice_as_many_groups_run_and_cut_off_ones_come_first(
    tmp_path: Path,
) -> None:
    run = UnevenRun(tmp_path, DOUBLE)
    run.turn()
    assert len(run.asked()) == 8

    run.train(3)
    run.turn()

    ledger = run.trainer.ledger
    assert ledger.running() + ledger.held() == 8
    assert {word.reason for word in run.cancelled()} == {UNFINISHED}
    run.close()


def test_a_continuation_keeps_its_parents_tokens_and_adds_its_own(
    finished: UnevenRun,
) -> None:
    lives = of_generations(finished)
    assert lives, "no rollout was cut off"

    for first, *others in lives.values():
        for before, after in zip([first, *others], others, strict=False):
            assert (before.status, before.reason) == ("cancelled", UNFINISHED)
            if not before.sequences or after.status != "finished":
                continue
            old, new = columns(before.sequences[0]), columns((after.sequences or ())[0])
            assert new[: len(old)] == old
            assert sum(row[1] for row in new) == sum(row[1] for row in old) + after.sampled_tokens


def test_a_sample_of_two_versions_is_trained_with_both(finished: UnevenRun) -> None:
    samples = [sample for batch in finished.learner.seen for sample in batch]
    gone_on = [s for s in samples if split_continued_id(s.scored.trajectory.rollout_id)[1]]
    versions = [
        {int(v) for q in s.scored.trajectory.sequences or () for v in ids_of(q.versions) if v >= 0}
        for s in gone_on
    ]

    assert any(len(each) > 1 for each in versions)
    for sample in gone_on:
        steps = sample.scored.trajectory.steps or ()
        assert sample.reward == sum(step.reward for step in steps)
        assert [step.position for step in steps] == sorted({step.position for step in steps})


def test_no_rollout_is_trained_twice_and_the_audit_is_clean(
    finished: UnevenRun,
) -> None:
    assert max(Counter(trained(finished)).values()) == 1
    assert max(Counter(request.rollout_id for request in finished.asked()).values()) == 1
    report = audit(finished)
    assert [str(breach) for breach in report.breaches] == []


@pytest.mark.parametrize("every", cases([3, 11]))
def test_a_repeatedly_dying_trainer_continues_every_rollout_once(
    tmp_path: Path, every: int
) -> None:
    run = UnevenRun(tmp_path, DOUBLE)

    for turn in range(3_000):
        run.turn()
        if turn % every == 0:
            run.begin()
        if run.trainer.learner.steps_done >= 6:
            break

    assert [step.step for step in run.steps()] == [1, 2, 3, 4, 5, 6]
    assert max(Counter(request.rollout_id for request in run.asked()).values()) == 1
    assert max(Counter(trained(run)).values()) == 1
    assert [len(step.trajectories) for step in run.steps()] == [4] * 6
    run.close()


@pytest.mark.parametrize("every", cases([0, 7], {7}))
def test_cut_off_rollouts_continue_beside_curators_and_replay(tmp_path: Path, every: int) -> None:
    """Also for a repeatedly dying trainer: each new rollout is trained once."""
    config = changed(DOUBLE, steps=8, groups_per_step=4, replay_ratio=0.5, replay_max_age=4)
    run = UnevenRun(tmp_path, config, curator=["filter_solved", "adaptive_rollouts"])

    for turn in range(4_000):
        run.turn()
        if every and turn % every == 0:
            run.begin()
        if run.trainer.learner.steps_done >= 8:
            break

    run.settle()
    assert [step.step for step in run.steps()] == list(range(1, 9))
    again = sum(int(step.metrics.get("replayed", 0)) for step in run.steps())
    assert again > 0
    assert len(trained(run)) - again == len(set(trained(run)))
    assert max(Counter(request.rollout_id for request in run.asked()).values()) == 1
    assert of_generations(run)
    ledger = run.trainer.ledger
    assert ledger.running() + ledger.taken() <= 2 * 2 * config.members
    assert [str(breach) for breach in audit(run).breaches] == []
    run.close()


def test_a_step_waits_for_cut_off_rollouts_and_scores_their_tokens(tmp_path: Path) -> None:
    config = changed(DOUBLE, old_logprobs="interrupt", correction="tis")
    run = UnevenRun(tmp_path, config)

    run.train(6)

    later = 0
    for number, batch in enumerate(run.learner.seen):
        for sample in batch:
            name, _ = split_continued_id(sample.scored.trajectory.rollout_id)
            for version in versions_of(sample.scored.trajectory.sequences or (), 0):
                later += version < number
                assert version == number or (name, version) in run.learner.noted
    assert later > 0, "nothing was sampled by two versions"
    assert max(Counter(request.rollout_id for request in run.asked()).values()) == 1
    run.settle()
    assert [str(breach) for breach in audit(run).breaches] == []
    run.close()


def test_a_steps_wait_for_cut_off_rollouts_is_bounded(tmp_path: Path) -> None:
    config = changed(CONFIG, old_logprobs="interrupt", over_provision=2.0)
    stage = Stage(tmp_path, config)
    assert stage.trainer.continuing is not None
    now = 0.0
    stage.trainer.continuing.clock = lambda: now
    stage.turn()
    for request in sorted(stage.in_the_air(), key=lambda each: each.group_id)[:4]:
        stage.end(request)
    for _ in range(3):
        stage.turn()
    assert (len(stage.cancelled()), stage.steps()) == (4, [])

    now = INTERRUPT_S
    stage.turn()

    assert [step.step for step in stage.steps()] == [1]
    stage.drain()
    assert len(stage.steps()) == 4


def test_masked_old_tokens_are_only_read(tmp_path: Path) -> None:
    run = UnevenRun(tmp_path, changed(DOUBLE, max_staleness=0, mask_continued=True))

    run.train(6)

    samples = [sample for batch in run.learner.seen for sample in batch]
    gone_on = [s for s in samples if split_continued_id(s.scored.trajectory.rollout_id)[1]]
    assert gone_on
    for step in run.steps():
        assert step.metrics["staleness_max"] == 0
    for request in (sample.scored.trajectory.request for sample in gone_on):
        if request is not None and request.agent == "fork":  # others had no answer yet
            past = Past.of(json.loads(request.agent_config))
            assert past.continues
            assert not any(
                each.logprobs for each in past.recorded if isinstance(each, RecordedAnswer)
            )
    run.close()


def test_a_rollout_that_cannot_be_replayed_begins_again(tmp_path: Path) -> None:
    run = UnevenRun(tmp_path, DOUBLE, environment="OneWayWalk")

    run.train(4)

    again = [request for request in run.asked() if split_continued_id(request.rollout_id)[1]]
    assert again
    acted = [request for request in again if request.agent == "fork"]
    assert all(len(Past.of(json.loads(r.agent_config)).recorded) < 3 for r in acted)
    assert max(Counter(trained(run)).values()) == 1
    run.close()


def test_a_last_answer_without_a_following_call_is_in_the_trajectory(
    tmp_path: Path,
) -> None:
    run = UnevenRun(tmp_path, DOUBLE)
    said = RecordedAnswer(1, 0, "0", "", "stop", pack_ids([5, 6]), pack_ids([7, 8]), "",
                pack_logprobs([-0.25, -0.5]), pack_ids([3, 4]))  # fmt: skip
    saw = RecordedObservation(0, "walk 1", 0.0, False, False)
    past = Past("react", "", 1, 1, (saw, said), continues=True)
    task = replace(run.template.task, seed=1)
    request = replace(run.template, rollout_id="r", task=task, purpose="replay", agent="fork",
                      agent_config=past.config(), group_id="g")  # fmt: skip
    run.trainer.admission.submitter.publish(request)

    run.settle()

    (ended,) = [each for each in run.trajectories() if each.rollout_id == "r"]
    (sequence,) = ended.sequences or ()
    assert (ended.status, ended.model_calls, len(ended.steps or ())) == ("finished", 0, 2)
    assert columns(sequence) == [
        [5, 0, 0, -1, 255], [6, 0, 0, -1, 255], [7, 1, -0.25, 3, 0], [8, 1, -0.5, 4, 0],
    ]  # fmt: skip
    assert [message.content for message in sequence.messages] == ["walk 1", "0"]
    report = audit(run)
    assert [str(b) for b in report.breaches] == []
    run.close()


def test_a_continuation_gets_its_parents_remaining_limits(tmp_path: Path) -> None:
    said = RecordedAnswer(1, 0, "9", "", "stop", pack_ids([5]), pack_ids([7, 8]), "",
                pack_logprobs([-0.25, -0.5]), pack_ids([0, 0]))  # fmt: skip
    past = Past(
        "react",
        "",
        1,
        1,
        (RecordedObservation(0, "walk 1", 0.0, False, False), said),
        continues=True,
    )
    run = UnevenRun(tmp_path, DOUBLE)
    task = replace(run.template.task, seed=1)
    short = replace(run.template.sampling, max_tokens=2)
    shared = replace(run.template, task=task, purpose="replay", agent="fork", sampling=short,
                     agent_config=past.config())  # fmt: skip
    tokens = replace(run.template.limits, max_tokens=5)
    run.trainer.admission.submitter.publish(replace(shared, rollout_id="t", limits=tokens))

    run.settle()

    ended = {each.rollout_id: each for each in run.trajectories()}
    assert (ended["t"].code, ended["t"].sampled_tokens) == ("token_limit", 3)
    run.close()


# The buffer and the ledger


def cut_off(stage: Stage, number: int) -> None:
    """End a rollout as cancelled by a batch that did without it."""
    request = stage.in_the_air()[number]
    stage.ended.append(request.rollout_id)
    made = stage._scored(request, "cancelled", None)
    ended = replace(made, total=None, trajectory=replace(made.trajectory, reason=UNFINISHED))
    value = stage.codec.encode(stage.topics.scored, ended)
    stage.log.append(stage.topics.scored, request.group_id.encode(), value)
    stage.written.append((request.group_id.encode(), value))


STAGED = changed(CONFIG, over_provision=2.0, retention=2)


def test_a_duplicate_record_of_an_older_generation_is_ignored(tmp_path: Path) -> None:
    stage = Stage(tmp_path, STAGED)
    stage.turn()
    cut_off(stage, 0)
    stage.turn()
    assert [r.rollout_id for r in stage.asked() if ":" in r.rollout_id] == [
        continued_id(stage.ended[0], 1)
    ]

    for _ in range(2):
        stage.again(0)
        stage.turn()
        stage.begin()

    assert len([r for r in stage.asked() if ":" in r.rollout_id]) == 1
    assert stage.trainer.running() == len(stage.in_the_air())
    stage.drain()


def test_a_rollout_resumed_too_often_is_dropped_as_retention(tmp_path: Path) -> None:
    stage = Stage(tmp_path, STAGED)
    stage.turn()
    base = stage.in_the_air()[0].rollout_id
    for generation in range(3):
        names = [request.rollout_id for request in stage.in_the_air()]
        cut_off(stage, names.index(continued_id(base, generation)))
        stage.turn()
        stage.begin()

    stage.drain()

    assert continued_id(base, 3) not in {request.rollout_id for request in stage.asked()}
    assert stage.trainer.buffer.drops()["retention"].count == 1


def test_a_rollout_cancelled_by_an_operator_is_not_resumed(tmp_path: Path) -> None:
    stage = Stage(tmp_path, STAGED)
    stage.turn()

    stage.end(stage.in_the_air()[0], "cancelled")
    stage.turn()

    assert not [r for r in stage.asked() if ":" in r.rollout_id]
    assert "continued" not in stage.trainer.buffer.drops()
    stage.drain()


def test_an_unreadable_last_record_of_a_continuation_ends_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path, STAGED)
    stage.turn()
    cut_off(stage, 0)
    stage.turn()
    (again,) = [r for r in stage.in_the_air() if ":" in r.rollout_id]

    stage.end(again, "torn")
    stage.turn()
    stage.drain()

    assert stage.trainer.buffer.drops()["unreadable"].count == 1


@pytest.mark.parametrize(
    ("accepted", "running", "groups"),
    [(0, 0, 16), (0, 64, 8), (0, 128, 0), (64, 64, 0), (40, 64, 3)],
)
def test_admission_keeps_a_multiple_of_the_batch_started(
    accepted: int, running: int, groups: int
) -> None:
    rule = AdmissionRule(4, 64, 4096, 8, over_provision=2.0)

    assert rule.grant(0, accepted, running) == groups
    assert rule.grant(3, 3 * 64 + accepted, running) == groups


def test_an_impossible_over_provision_is_refused_and_the_default_changes_no_digest() -> None:
    with pytest.raises(Refused, match=r"over_provision is 0\.5; give 1"):
        LearnerConfig(over_provision=0.5)
    with pytest.raises(Refused, match="set mask_continued"):
        LearnerConfig(over_provision=2.0, max_staleness=0)
    LearnerConfig(over_provision=2.0, max_staleness=0, mask_continued=True)
    assert LearnerConfig(over_provision=1.0, retention=0).digest() == LearnerConfig().digest()
    assert LearnerConfig(over_provision=2.0).digest() != LearnerConfig().digest()


def test_an_over_provisioning_recipe_trains_a_real_policy(tmp_path: Path) -> None:
    text = RECIPE.replace("group_size = 4", "group_size = 2\nover_provision = 2.5")
    world = World(tmp_path, text.replace("max_turns = 4", "max_turns = 6"))

    world.train(world.trainer(), steps=2)
    world.train(world.trainer())

    assert [len(step.trajectories) for step in world.steps()] == [4] * 4
    assert world.read(world.topics.control, Control) is not None
    assert world.read(world.topics.scored, ScoredTrajectory)
    world.close()
