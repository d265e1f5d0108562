"""A trainer with a checkpoint that counts lost log records names them and can continue."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall.consumers.training.lost_offsets import LostOffsets
from rollcall.schemas.errors import JournalGone
from rollcall.schemas.messages import RolloutRequest, Task, TrainStep
from rollcall.trainer.checkpoints import checkpoint as checkpoints
from rollcall.trainer.checkpoints.manifest import MANIFEST, read_body, write_body
from tests.support.changed_config import changed
from tests.support.staged_run import CONFIG, Stage
from tests.support.tiers import examples

TOPICS = {
    "scored": lambda stage: stage.topics.scored,
    "requests": lambda stage: stage.topics.requests,
}
RUN = changed(CONFIG, steps=6)


def lose(stage: Stage, topic: str, share: float) -> int:
    """Cut each partition of a topic at this share of it; returns how many have lost something."""
    for number, (_, end) in stage.log.bounds(topic).items():
        stage.log.truncate(topic, number, int(share * end))
    return len([end for _, end in stage.log.bounds(topic).values() if end])


def grow(stage: Stage, topic: str, records: int) -> None:
    """Another run's rollouts are asked for, and never end, or are scored under another name."""
    stage.ended.append("other")
    request = RolloutRequest("other", Task(), policy_id="policy", run_id="other", purpose="train")
    value = b"of others" if topic == stage.topics.scored else stage.codec.encode(topic, request)
    for number in stage.log.bounds(topic):
        for _ in range(records):
            stage.log.append(topic, b"other", value, number)


def trained(directory: Path, steps: int = 3) -> Stage:
    stage = Stage(directory, RUN)
    stage.train(steps)
    return stage


def as_of_an_earlier_release(stage: Stage) -> None:
    """The newest checkpoint without what this release has added."""
    path = list(checkpoints.kept(stage.trainer.run.checkpoints).values())[-1]
    body = read_body(path)
    del body["leaders"]
    write_body(path, body)
    assert (path / MANIFEST).exists()


def finish(stage: Stage) -> None:
    """Finish the run; lost rollouts count as such after ten minutes."""
    clock = [0.0]
    stage.trainer.stall_detector.clock = lambda: clock[0]
    stage.trainer.stall_detector.begin()
    for _ in range(400):
        for request in stage.in_the_air():
            stage.end(request)
        stage.trainer.turn(0.0)
        clock[0] += 60
        if stage.trainer.done():
            return
    pytest.fail(f"stands still after step {stage.trainer.learner.steps_done}")


def refused(stage: Stage, words: str) -> None:
    with pytest.raises(JournalGone, match=words) as told:
        stage.begin()
    assert "\n" not in str(told.value)
    assert "--accept-truncation" in str(told.value)


@settings(max_examples=examples(20), deadline=None)
@given(
    topic=st.sampled_from(sorted(TOPICS)),
    share=st.floats(0, 0.9),
    later=st.sampled_from([0, 1, 100]),
    anew=st.booleans(),
)
def test_lost_log_records_named_by_a_checkpoint_are_refused_until_accepted(
    topic: str, share: float, later: int, anew: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stage = trained(tmp_path_factory.mktemp("run"))
    name = TOPICS[topic](stage)
    if anew:
        stage.log.recreate(name)
    else:
        lose(stage, name, share)
    grow(stage, name, later)

    # The restarted trainer reports it, every time
    place = rf"{name} [01] "
    for _ in range(2):
        refused(stage, place + ("was deleted and made anew" if anew else "has lost its tail"))

    # And continues once that is accepted, for good when it has saved a step
    stage.accept_truncation = True
    stage.begin()
    finish(stage)
    stage.accept_truncation = False
    stage.begin()
    assert stage.trainer.learner.steps_done == RUN.steps


@pytest.mark.parametrize("topic", sorted(TOPICS))
def test_a_lost_tail_is_found_from_an_older_releases_checkpoint(topic: str, tmp_path: Path) -> None:
    stage = trained(tmp_path)
    as_of_an_earlier_release(stage)
    name = TOPICS[topic](stage)
    stage.begin()

    lose(stage, name, 0.5)

    refused(stage, rf"{name} [01] has lost its tail: offset \d+ is counted, but from \d+ on")


def test_a_run_that_began_beyond_the_log_end_is_refused(tmp_path: Path) -> None:
    stage = Stage(tmp_path, RUN)
    run = replace(stage.trainer.run, starts={(stage.topics.train_steps, 0): 999})
    marks: Any = LostOffsets(stage.log, stage.topics, run, None)

    with pytest.raises(JournalGone, match=f"{stage.topics.train_steps} 0 has lost its tail.* 999"):
        marks.beginning(accept=False)
    assert marks.beginning(accept=True).run.starts == {}


def test_unread_scores_removed_by_retention_are_named(tmp_path: Path) -> None:
    stage = trained(tmp_path)
    for request in stage.in_the_air():
        stage.end(request)
    name = stage.topics.scored
    for number, (_, end) in stage.log.bounds(name).items():
        stage.log.delete_before(name, number, end)

    refused(stage, rf"{name} [01] begins at \d+, but offset \d+ is needed")

    stage.accept_truncation = True
    stage.begin()
    finish(stage)


def test_an_intact_log_changes_nothing(tmp_path: Path) -> None:
    stage = trained(tmp_path)
    held = checkpoints.load_latest(stage.trainer.run.checkpoints).checkpoint
    assert held is not None
    assert {leader.topic for leader in held.leaders} == {stage.topics.scored, stage.topics.requests}

    for accept in (True, False):
        marks = LostOffsets(stage.log, stage.topics, stage.trainer.run, held)
        beginning = marks.beginning(accept=accept)
        assert (beginning.held, beginning.run, beginning.lost) == (held, stage.trainer.run, ())
    stage.begin()
    stage.drain()
    steps = [
        stage.codec.decode(r.value, TrainStep) for r in stage.log.all(stage.topics.train_steps)
    ]
    assert len({step.step for step in steps}) == len(steps)
