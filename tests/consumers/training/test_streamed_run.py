"""A run that adds gradients as groups complete: on-policy, and retrained bit for bit."""

from pathlib import Path

import pytest
import torch

from rollcall.compose.runs.retraining import retrain_and_tell
from rollcall.consumers.training.streamed_step import StreamedStep
from rollcall.schemas.errors import BatchFailed, Unavailable
from rollcall.trainer.curation.buffer import Buffer
from rollcall.trainer.learner.streaming import Streaming
from rollcall.trainer.rules.samples import Sample
from tests.support.scored_trajectories import CURATION, sample, scored
from tests.support.tiny_run import RECIPE, World

STREAMED = RECIPE.replace(
    "groups_per_step = 2",
    'groups_per_step = 3\nstream = true\nmax_staleness = 0\nadvantage = "dr_grpo"\n'
    'aggregate = "token_mean"',
).replace('name = "tiny"', 'name = "tiny"\nmax_running = 4')
"""One group after the other is in the air."""


def test_every_step_uses_the_newest_weights_and_is_retrained_bit_for_bit(
    tmp_path: Path,
) -> None:
    """For any order of the groups and any restart in between."""
    world = World(tmp_path, STREAMED)
    first = world.trainer()
    world.train(first, steps=1)
    for _ in range(2_000):
        if first.training.streamed._added:
            break
        for loop in world.loops:
            loop.turn(0.0)
        first.turn(0.0)
    assert first.training.streamed._added, "no group was added before its batch was whole"

    world.train(world.trainer())

    told = [step.metrics for step in world.steps()]
    assert [len(step.trajectories) for step in world.steps()] == [12] * 4
    assert {metrics["staleness_max"] for metrics in told} == {0}
    assert any(metrics["streamed_seconds"] > 0 for metrics in told)
    report = retrain_and_tell(
        world, world.folder.trained(), (1, 4), version=None,
        threads=torch.get_num_threads(), tell=lambda _: None,
    )  # fmt: skip
    assert report["differing"] == []
    assert len(report["steps"]) == 4
    world.close()


class Adding:
    """A learner that only notes what it is given."""

    version = 0
    away = False

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.begun = 0
        self.stepped: list[Sample] = []

    def streaming(self) -> Streaming:
        self.begun += 1
        return Streaming()

    def stream(self, streaming: Streaming, samples: list[Sample]) -> None:
        if self.away:
            msg = "the store does not answer"
            raise Unavailable(msg)
        if self.fails:
            msg = "broken"
            raise BatchFailed(msg)
        streaming.samples += samples

    def finish(self, streaming: Streaming, *, version: int) -> dict[str, float]:
        return {"finished": float(version)}

    def step(self, samples: tuple[Sample, ...], *, version: int) -> dict[str, float]:
        self.stepped += samples
        if self.fails:
            msg = "broken"
            raise BatchFailed(msg)
        return {"stepped": float(version)}


def staged(learner: Adding, groups: int = 2) -> tuple[StreamedStep, Buffer]:
    buffer = Buffer(CURATION)
    for offset in range(2 * groups):
        record = scored(f"r{offset}", group=f"g{offset % groups}", group_size=2)
        buffer.offer(record, 0, offset)
    return StreamedStep(learner, buffer), buffer  # type: ignore[arg-type]


def test_a_group_is_added_once_and_the_step_keeps_the_summing_order() -> None:
    streamed, buffer = staged(learner := Adding())
    assert (streamed.add_complete(), streamed.add_complete()) == (2, 0)

    taken = buffer.take(2, v_now=0)
    assert taken is not None
    metrics, order = streamed.take(taken, 7)

    assert metrics["finished"] == 7
    assert [each.offset for each in order] == [0, 2, 1, 3]
    assert (learner.begun, learner.stepped) == (1, [])


def test_a_batch_that_differs_from_the_added_groups_is_recomputed() -> None:
    streamed, buffer = staged(learner := Adding())
    streamed.add_complete()
    taken = buffer.take(1, v_now=0)
    assert taken is not None

    metrics, order = streamed.take(taken, 7)

    assert metrics == {"stepped": 7}
    assert list(order) == list(taken) == learner.stepped
    assert streamed.add_complete() == 1
    assert learner.begun == 2


def test_all_groups_are_added_again_after_a_store_outage() -> None:
    """The error has cleared the gradient, with all groups added before it."""
    streamed, buffer = staged(learner := Adding())
    assert streamed.add_complete() == 2
    for offset, name in enumerate("ab", 10):
        buffer.offer(scored(name, group="h", group_size=2), 0, offset)
    learner.away = True
    with pytest.raises(Unavailable):
        streamed.add_complete()

    learner.away = False
    assert streamed.add_complete() == 3
    taken = buffer.take(3, v_now=0)
    assert taken is not None
    metrics, order = streamed.take(taken, 7)
    assert (metrics["finished"], len(order), learner.begun) == (7, 6, 2)


def test_a_batch_with_an_unaddable_group_fails_once_it_is_whole() -> None:
    streamed, buffer = staged(learner := Adding(fails=True))
    streamed.add_complete()
    streamed.add_complete()
    taken = buffer.take(2, v_now=0)
    assert taken is not None

    with pytest.raises(BatchFailed):
        streamed.take(taken, 7)

    learner.fails = False
    buffer.offer(scored("a", group="h", group_size=2), 0, 10)
    buffer.offer(scored("b", group="h", group_size=2), 0, 11)
    streamed.add_complete()
    assert streamed.take((sample(scored("a", group="h"), 10), sample(scored("b"), 11)), 8) == (
        {"finished": 8.0, "streamed_seconds": pytest.approx(0, abs=5)},
        tuple(buffer.take(1, v_now=0) or ()),
    )
