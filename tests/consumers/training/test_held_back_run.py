"""A trainer that holds a step back keeps reading, stops at its deadline, and continues as usual."""

from pathlib import Path

import pytest

from rollcall.schemas.messages import RolloutRequest
from rollcall.schemas.trajectory_refs import refs_of
from rollcall.trainer.curation.buffer import HELD_BACK
from tests.support.changed_config import changed
from tests.support.staged_run import CONFIG, Stage
from tests.support.tiers import cases

WAITING = changed(
    CONFIG, on_stale="wait", max_staleness=1, groups_per_step=2, group_size=2, capacity_groups=2,
    steps=6,
)  # fmt: skip


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def groups_of(stage: Stage) -> dict[str, list[RolloutRequest]]:
    found: dict[str, list[RolloutRequest]] = {}
    for request in stage.asked():
        found.setdefault(request.group_id, []).append(request)
    return found


def turns(stage: Stage, count: int = 8) -> None:
    for _ in range(count):
        stage.turn()


def end_all_but(stage: Stage, slow: str) -> None:
    for request in stage.in_the_air():
        if request.group_id != slow:
            stage.end(request)


def held_back(stage: Stage) -> str:
    """Let it hold its second step back for an open group; return the group."""
    turns(stage)
    slow = next(iter(groups_of(stage)))
    for _ in range(4):
        end_all_but(stage, slow)
        turns(stage)
    assert stage.trainer.learner.steps_done == 1
    return slow


def end(stage: Stage, slow: str) -> None:
    for request in groups_of(stage)[slow]:
        stage.end(request)


@pytest.mark.parametrize("capacity", cases([2, 64]))
def test_a_step_trains_the_group_it_waits_for(tmp_path: Path, capacity: int) -> None:
    stage = Stage(tmp_path, changed(WAITING, capacity_groups=capacity))
    slow = held_back(stage)

    end(stage, slow)
    turns(stage)

    trained = {ref.rollout_id for step in stage.kept_steps() for ref in refs_of(step)}
    assert trained >= {request.rollout_id for request in groups_of(stage)[slow]}
    assert "stale" not in stage.trainer.buffer.drops()
    stage.drain()


def test_the_deadline_passes_even_if_no_more_is_read(tmp_path: Path) -> None:
    stage, clock = Stage(tmp_path, WAITING), Clock()
    held_back(stage)
    buffer = stage.trainer.buffer
    buffer.clock, clock.now = clock, buffer._log_at

    clock.now += WAITING.staleness.wait_s + 1
    turns(stage)

    assert stage.trainer.learner.steps_done > 1


def test_groups_held_during_a_wait_are_bounded(tmp_path: Path) -> None:
    """The bound on memory takes precedence over the wait."""
    stage = Stage(tmp_path, WAITING)
    slow = held_back(stage)
    trainer = stage.trainer
    draws = iter(range(trainer.ledger.next_draw, 10**6))
    most = 0
    for _ in range(12):
        for member in trainer.curriculum.group(draw := next(draws)):
            trainer.ledger.published(draw, 2, trainer.learner.version)
            stage.end(member)
        trainer.turn(0.0)
        most = max(most, trainer.buffer.ready_groups())

    assert most <= HELD_BACK * WAITING.groups.capacity + 1  # the records of one poll
    assert trainer.learner.steps_done > 1
    assert slow in groups_of(stage)


def test_a_trainer_that_dies_during_its_wait_takes_the_same_steps(tmp_path: Path) -> None:
    taken = []
    for name in ("alone", "killed"):
        stage = Stage(tmp_path / name, changed(WAITING, capacity_groups=64))
        slow = held_back(stage)
        if name == "killed":
            for _ in range(3):
                stage.begin()
                turns(stage, 2)
                assert stage.trainer.learner.steps_done == 1
        end(stage, slow)
        turns(stage)
        steps = stage.kept_steps()
        taken.append([(s.version, [r.rollout_id for r in refs_of(s)]) for s in steps])

    assert taken[0] == taken[1]
    assert len(taken[0]) > 1


def test_a_restarted_trainer_does_not_restart_its_wait(tmp_path: Path) -> None:
    stage = Stage(tmp_path, changed(WAITING, capacity_groups=64))
    slow = held_back(stage)
    buffer = stage.trainer.buffer
    whole = sorted(buffer._groups[key].ended_ms() for _, _, key in buffer._ready)[1]

    stage.begin()
    turns(stage, 2)
    buffer = stage.trainer.buffer
    buffer._log_ms = whole + int(
        1000 * WAITING.staleness.wait_s
    )  # a rollout of another run ended then
    turns(stage, 2)

    assert stage.trainer.learner.steps_done > 1
    assert slow in groups_of(stage)
