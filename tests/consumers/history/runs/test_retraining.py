"""Recorded steps can be retrained bit for bit, and nothing is written."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rollcall.compose.cli.retrain import parse_steps
from rollcall.compose.runs.recipe import parse_recipe
from rollcall.compose.runs.retraining import retrain_and_tell
from rollcall.compose.runs.run_folder import RunFolder, require_unchanged
from rollcall.compose.workers.retraining_ranks import learner_of
from rollcall.compose.workers.run_trainer import run_trainer
from rollcall.consumers.history.runs.retraining import plan
from rollcall.schemas.errors import Refused, TopicRecreated, Unfit
from rollcall.schemas.messages import ScoredTrajectory, TrainStep
from rollcall.trainer.rules.samples import group_of
from tests.support.changed_config import changed
from tests.support.tiny_run import RECIPE, World


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Four steps; kept are the checkpoints of 0, 2, 3 and 4."""
    world = World(tmp_path_factory.mktemp("run"))
    world.train(world.trainer())
    return world


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A run that the test may damage."""
    return World(tmp_path)


def again(
    world: World, steps: str, *, version: int | None = None, folder: RunFolder | None = None
) -> tuple[dict[str, Any], list[str]]:
    told: list[str] = []
    report = retrain_and_tell(
        world,
        (folder or world.folder).trained(),
        parse_steps(steps),
        version=version,
        threads=torch.get_num_threads(),
        tell=told.append,
    )
    return report, told


def everything(world: World) -> tuple[dict[str, int], dict[str, str]]:
    """How much is on each topic, and a digest of every file of the run."""
    counts = {topic: len(list(world.log.all(topic))) for topic in world.log.topics}
    files = {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in world.folder.directory.rglob("*")
        if path.is_file()
    }
    return counts, files


def test_a_run_retrained_from_its_first_checkpoint_has_identical_bits(finished: World) -> None:
    before = everything(finished)

    report, told = again(finished, "1..4")

    announced = {version.version: version.weights_digest for version in finished.versions()}
    assert report["checkpoint_step"] == 0
    assert [step["digest"] for step in report["steps"]] == [announced[n] for n in (1, 2, 3, 4)]
    assert report["differing"] == []
    assert all("identical" in line for line in told[1:])
    assert everything(finished) == before


def test_a_run_with_interrupt_logprobs_is_not_retrained(finished: World) -> None:
    run = finished.folder.trained()
    config = changed(run.config, old_logprobs="interrupt", over_provision=2.0)

    with pytest.raises(Refused, match=r"'interrupt', which goes by .* begin a run with"):
        plan(finished, replace(run, config=config), 1, 4)


def test_retraining_begins_at_the_newest_earlier_checkpoint(
    finished: World,
) -> None:
    near, _ = again(finished, "4")
    far, told = again(finished, "2..3")

    assert (near["checkpoint"], [s["step"] for s in near["steps"]]) == ("v00000003", [4])
    assert (far["checkpoint"], [s["asked"] for s in far["steps"]]) == (
        "v00000000",
        [False, True, True],
    )
    assert "step 1 is trained too" in told[1]
    assert near["differing"] == far["differing"] == []


def test_every_step_carries_the_digest_of_its_version(finished: World) -> None:
    announced = {version.version: version.weights_digest for version in finished.versions()}

    assert {step.version: step.weights_digest for step in finished.steps()} == {
        version: digest for version, digest in announced.items() if version
    }


def test_an_abandoned_branch_is_retrained_only_if_it_is_named(world: World) -> None:
    # Given steps 1 and 2, of which the second's checkpoint was lost, and a run that went on
    world.train(world.trainer(), steps=2)
    (world.folder.directory / "checkpoints" / "v00000002" / "manifest.json").unlink()
    world.train(world.trainer())
    made = {step.version: step for step in world.steps()}
    assert (made[2].step, made[3].step, made[3].parent) == (2, 2, 1)

    newest, _ = again(world, "2")
    abandoned, _ = again(world, "2", version=2)

    assert [step["version"] for step in newest["steps"]] == [1, 3]
    assert [step["version"] for step in abandoned["steps"]] == [1, 2]
    assert newest["differing"] == abandoned["differing"] == []
    with pytest.raises(Refused, match=r"version 2 has steps 1\.\.2.*versions 4:"):
        again(world, "3", version=2)
    with pytest.raises(Refused, match=r"version 9; .* 1\.\.5"):
        again(world, "2", version=9)


def test_differing_weights_are_reported_with_their_difference(world: World) -> None:
    world.train(world.trainer(), steps=1)
    told_otherwise(world)

    report, told = again(world, "1")

    assert report["differing"] == [1]
    assert 0 < report["steps"][0]["difference"] < 1
    assert "differs from" in told[-1]
    weights = next((world.folder.directory / "weights").glob("v00000001-*"))
    weights.unlink()
    (world.folder.directory / "checkpoints" / "v00000001" / "manifest.json").unlink()
    assert "its weights file is gone" in again(world, "1")[1][-1]


def test_machine_facts_are_recorded_and_reported_before_bits_are_compared(world: World) -> None:
    world.train(world.trainer(), steps=1)
    [step] = world.steps()
    assert set(step.machine) == {"threads", "ranks", "cpu", "processor", "torch", "device"}
    assert step.machine["threads"] == str(torch.get_num_threads())
    assert step.machine["device"] == "cpu"
    say_again(world, replace(step, machine=step.machine | {"threads": "64", "torch": "1.0"}))

    report, told = again(world, "1")

    [said] = [line for line in told if "is not as it was" in line]
    assert told.index(said) < len(told) - 1
    assert f"threads 64 then, {torch.get_num_threads()} now" in said
    assert "torch 1.0 then" in said
    assert len(report["otherwise"]) == 2


def test_a_step_without_machine_facts_is_reported_as_unknown(
    world: World,
) -> None:
    world.train(world.trainer(), steps=1)
    [step] = world.steps()
    say_again(world, replace(step, machine={}))

    report, told = again(world, "1")

    known = [said.split(" then, ")[0] for said in report["otherwise"]]
    assert known == [f"{key} unknown" for key in sorted(step.machine)]
    assert any("bits may differ" in line for line in told)
    assert "identical" in told[-1]


def test_steps_of_different_rank_counts_are_not_retrained_in_one_call(
    world: World,
) -> None:
    world.train(world.trainer(), steps=2)
    step = world.steps()[-1]
    say_again(world, replace(step, machine=step.machine | {"ranks": "2"}))

    with pytest.raises(Refused, match=r"step 1 by 1 ranks and step 2 by 2, .* of one count"):
        again(world, "1..2")


def test_a_rank_that_cannot_begin_is_named_and_blocks_no_other(world: World) -> None:
    world.train(world.trainer(), steps=1)
    ahead = plan(world, world.folder.trained(), 1, 1)
    (world.folder.directory / "recipe.toml").unlink()

    with (
        pytest.raises(Unfit, match="rank 1 of 2 has ended before it met"),
        learner_of(replace(ahead, ranks=2), 1),
    ):
        pytest.fail("nobody may train")


def say_again(world: World, step: TrainStep) -> None:
    """Write another record of a step; the last one counts."""
    value = world.factory.codec.encode(world.topics.train_steps, step)
    world.log.append(world.topics.train_steps, step.policy_id.encode(), value)


def told_otherwise(world: World) -> None:
    """Announce step 1 as if it had left the weights where they were before it."""
    version0, weights = world.versions()[0], world.folder.directory / "weights"
    [step] = world.steps()
    say_again(world, replace(step, weights_digest=version0.weights_digest))
    for path in weights.glob("v00000001-*"):
        path.unlink()
    [file] = weights.glob("v00000000-*")
    (weights / file.name.replace("v00000000", "v00000001")).write_bytes(file.read_bytes())


@pytest.mark.parametrize("text", ["", "4..2", "0..3", "a..b", "1-3", "..3"])
def test_an_invalid_range_of_steps_is_refused(text: str) -> None:
    with pytest.raises(Refused, match=r"write a\.\.b with 1 <= a <= b"):
        parse_steps(text)


def test_missing_steps_are_named_with_the_existing_ones(finished: World) -> None:
    with pytest.raises(Refused, match=r"steps 3\.\.9 .* 4 has steps 1\.\.4"):
        again(finished, "3..9")
    with pytest.raises(Refused, match="step 5 is not there"):
        again(finished, "5")


def test_a_run_without_steps_is_refused(world: World) -> None:
    with pytest.raises(Refused, match=r"has no record in m\.train\.steps"):
        again(world, "1")


def test_records_lost_to_retention_are_named_with_the_remaining_ones(world: World) -> None:
    world.train(world.trainer())
    first = world.steps()[0].trajectories[0]
    world.log.delete_before(world.topics.scored, first.partition, first.offset + 1)

    with pytest.raises(Refused) as refused:
        again(world, "1..4")

    text = str(refused.value)
    assert f"{world.topics.scored} {first.partition}:{first.offset}" in text
    assert f"still there are partitions {first.partition} from {first.offset + 1}" in text
    assert "steps 2..4 are whole" in text


def test_a_recreated_topic_is_refused(world: World) -> None:
    world.train(world.trainer(), steps=1)
    world.log.recreate(world.topics.scored)

    with pytest.raises(TopicRecreated, match="made anew"):
        again(world, "1")


def test_a_missing_first_checkpoint_is_refused_with_the_possible_first_steps(
    world: World,
) -> None:
    world.train(world.trainer())
    (world.folder.directory / "checkpoints" / "v00000000" / "manifest.json").unlink()

    with pytest.raises(Refused, match=r"steps 2, 3, 4; .* step 3"):
        again(world, "2..3")


def test_a_changed_recipe_is_refused_by_retraining_and_training(world: World) -> None:
    world.train(world.trainer(), steps=1)
    recipe = parse_recipe(RECIPE.replace("steps = 4", "steps = 5"), "tiny")
    changed = replace(world.folder, recipe=recipe)

    with pytest.raises(Refused, match="learner configuration"):
        again(world, "1", folder=changed)
    with pytest.raises(Refused, match="or begin a new run"):
        run_trainer(world.factory, "training", changed)
    with pytest.raises(Refused, match="or begin a new run"):
        require_unchanged(changed)
    require_unchanged(world.folder)


def test_the_number_of_kept_checkpoints_does_not_affect_learning(world: World) -> None:
    world.train(world.trainer(), steps=1)
    text = RECIPE.replace("[learner]", "[learner]\ncheckpoint_keep_every = 1")
    folder = replace(world.folder, recipe=parse_recipe(text, "tiny"))

    assert again(world, "1", folder=folder)[0]["differing"] == []


def test_steps_held_back_for_a_group_are_retrained_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of a step is not part of its record."""
    waiting = 'on_stale = "wait"\nmax_staleness = 1\n'
    world = World(tmp_path, RECIPE.replace("[learner]\n", f"[learner]\n{waiting}"))
    trainer = world.trainer()
    offer, asked, slow = trainer.buffer.offer, trainer.buffer._held_back, list[Any]()
    came = list[Any]()

    def offered(scored: ScoredTrajectory, *place: int) -> None:
        late = group_of(scored) == world.folder.draws().group(1)[0].group_id
        slow.append((scored, *place)) if late else offer(scored, *place)

    def held_back(groups: int, v_now: int) -> bool:
        held = asked(groups, v_now)
        while held and slow:  # the awaited group has arrived at the next look
            came.append(slow.pop())
            offer(*came[-1])
        return held

    monkeypatch.setattr(trainer.buffer, "offer", offered)
    monkeypatch.setattr(trainer.buffer, "_held_back", held_back)
    world.train(trainer)
    assert len(came) == 4

    report, _ = again(world, "1..4")

    assert [step["step"] for step in report["steps"]] == [1, 2, 3, 4]
    assert report["differing"] == []
