"""A trainer with records too large for the log, during outages of its stores."""

from pathlib import Path

import pytest

from rollcall.consumers.training import trainer
from rollcall.schemas.errors import Unavailable
from rollcall.schemas.messages import Claim, PolicyVersion
from rollcall.schemas.trajectory_refs import refs_of
from tests.support.avro_messages import Shelf
from tests.support.staged_run import SIZE, Stage
from tests.support.tiers import cases

HEAVY = '{"x": "' + "word " * 1000 + '"}'


class Narrow(Shelf):
    """Accepts this many puts, then none until space is freed."""

    def __init__(self, room: int) -> None:
        super().__init__(above_bytes=2000)
        self.room = room

    def put(self, value: bytes) -> Claim:
        if self.room <= 0:
            msg = "no space left"
            raise Unavailable(msg)
        self.room -= 1
        return super().put(value)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "AWAY_S", 0.0)


def ids(stage: Stage) -> list[str]:
    return sorted(request.rollout_id for request in stage.asked())


@pytest.mark.parametrize("room", cases(range(8), 3))
def test_a_store_full_during_a_draw_loses_and_doubles_no_request(tmp_path: Path, room: int) -> None:
    store = Narrow(room)
    stage = Stage(tmp_path, objects=store, agent_config=HEAVY)
    for _ in range(5):
        stage.turn()
    before = ids(stage)

    store.room = 1000
    for _ in range(5):
        stage.turn()

    wanted = [r.rollout_id for n in range(6) for r in stage.draws.group(n)]
    assert before == sorted(wanted[: room // SIZE * SIZE])
    assert ids(stage) == sorted(wanted)
    stage.drain()


@pytest.mark.parametrize("room", range(3))
def test_an_evaluation_is_requested_once_and_whole_after_a_full_store(
    tmp_path: Path, room: int
) -> None:
    store = Narrow(room)
    stage = Stage(tmp_path, seeds=(50, 53), objects=store, agent_config=HEAVY)
    for _ in range(3):
        stage.turn()
    before = ids(stage)

    store.room = 1000
    for _ in range(3):
        stage.turn()

    assert before == []
    assert ids(stage) == sorted(request.rollout_id for request in stage.plan.requests(0))


def test_records_unread_during_a_store_outage_are_trained_afterwards(
    tmp_path: Path,
) -> None:
    store = Narrow(1000)
    stage = Stage(tmp_path, objects=store, agent_config=HEAVY)
    stage.turn()
    for request in stage.in_the_air():
        stage.end(request)

    store.away = True
    for _ in range(5):
        stage.trainer.turn(0.0)
    before = stage.steps()
    store.away = False
    stage.turn()

    assert before == []
    (step,) = stage.steps()
    assert len(refs_of(step)) == stage.config.groups.per_step * SIZE
    stage.drain()
    assert stage.trainer.buffer.drops() == {}


def test_a_step_with_unwritable_weights_is_announced_before_the_next(
    tmp_path: Path,
) -> None:
    # Given a disk that takes no weights
    stage = Stage(tmp_path)
    weights, aside = tmp_path / "weights", tmp_path / "aside"
    weights.rename(aside)
    weights.write_bytes(b"")
    for _ in range(5):
        for request in stage.in_the_air():
            stage.end(request)
        stage.turn()

    # When one step is taken, then no other begins until it is written
    assert stage.trainer.learner.steps_done == 1
    assert stage.steps() == []
    weights.unlink()
    aside.rename(weights)
    stage.drain()

    # And then every step follows the one before it, with all that it was made of
    assert [(step.step, step.version, step.parent) for step in stage.steps()] == [
        (n, n, n - 1) for n in range(1, 5)
    ]
    records = stage.log.all(stage.topics.versions)
    versions = [stage.codec.decode(record.value, PolicyVersion).version for record in records]
    assert versions == [0, 1, 2, 3, 4]
