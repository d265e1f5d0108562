"""A batch is trained on once, and whole, whatever raises in the trainer around its learner."""

from pathlib import Path

import pytest

from consumers.training import trainer as trainer_module
from tests.support.faulty_files import faulty_files
from tests.support.tiny_run import RECIPE, World

STORED = RECIPE.replace("[policy]\n", '[policy]\nweights_url = "faulty://weights"\n').replace(
    "group_size = 4\n", 'group_size = 4\nold_logprobs = "snapshot"\n'
)
ON_POLICY = """[learner]
stream = true
max_staleness = 0
advantage = "dr_grpo"
aggregate = "token_mean"
"""
STREAMED = STORED.replace("[learner]\n", ON_POLICY)


@pytest.mark.parametrize("text", [STORED, STREAMED], ids=["at once", "group by group"])
def test_a_store_that_is_away_while_past_weights_are_read_costs_no_rollout(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a run that reads the weights of then for every batch
    monkeypatch.setattr(trainer_module, "AWAY_S", 0.0)
    faults = faulty_files()
    world = World(tmp_path, text)
    trainer = world.trainer()
    world.train(trainer, steps=1)

    # When their store is away for longer than `max_skipped` batches take
    faults.at = faults.calls
    for _ in range(400):
        for loop in world.loops:
            loop.turn(0.0)
        trainer.turn(0.0)
    assert trainer.learner.steps_done == 1
    faults.at = None
    world.train(trainer)

    # Then all is trained on that was asked for, and by another process to the same bits
    steps = world.steps()
    assert [step.step for step in steps] == [1, 2, 3, 4]
    assert not any("step_failed" in step.dropped for step in steps)
    assert [step.identical for step in world.trained_again(1, 4)] == [True] * 4
