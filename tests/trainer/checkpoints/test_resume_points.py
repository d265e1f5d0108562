"""The records that are read again after resuming from one of the newest checkpoints."""

from pathlib import Path

from rollcall.schemas.messages import Consumed
from rollcall.schemas.weights import RawTensor
from rollcall.trainer.checkpoints.checkpoint import NEWEST, Checkpoint, load_latest, save
from rollcall.trainer.checkpoints.learner_state import LearnerState
from rollcall.trainer.checkpoints.manifest import MANIFEST
from rollcall.trainer.checkpoints.resume_points import resume_points
from rollcall.trainer.curation.replay import ReplayState

TOPIC = "trajectories.scored"
BOOK = ReplayState(groups=((1, ((0, 2), (1, 3))),), successes=((1, (0, 4)),))


def save_one(root: Path, version: int, *consumed: Consumed, book: ReplayState = BOOK) -> Path:
    some = {"w": RawTensor("U8", (1,), bytes([version]))}
    state = LearnerState(version, version, 0, some, some, some)
    return save(root, Checkpoint(state, version - 1, consumed=consumed, replay=book))


def test_unconsumed_offsets_and_pooled_samples_are_read_again(tmp_path: Path) -> None:
    save_one(tmp_path, 1, Consumed(TOPIC, 0, 7, (9,)))

    [point] = resume_points(tmp_path)

    wanted = {offset for offset in range(12) if point.wants(0, offset)}
    assert wanted == {2, 4, 7, 8, 10, 11}
    assert [point.is_unread(0, offset) for offset in (4, 7, 9)] == [False, True, False]
    assert point.first(0, start=0) == 2
    # Of a partition without records, all is unread from the start of the run
    assert point.first(1, start=5) == 3
    assert point.first(2, start=5) == 5
    assert point.wants(2, 5)


def test_resume_points_are_the_newest_loadable_checkpoints(tmp_path: Path) -> None:
    assert resume_points(tmp_path / "nowhere") == ()
    paths = [
        save_one(tmp_path, version, Consumed(TOPIC, 0, version, ()), book=ReplayState())
        for version in range(NEWEST + 2)
    ]

    def marks() -> list[int]:
        return [point.consumed[0].next_offset for point in resume_points(tmp_path)]

    newest = NEWEST + 1
    assert marks() == [newest, newest - 1, newest - 2]

    # A damaged manifest is skipped here as there; the first point is the one resumed from
    for damage in (b"", b"{}", b"[1]", (paths[-2] / MANIFEST).read_bytes()[:-9]):
        (paths[-1] / MANIFEST).write_bytes(damage)
        held = load_latest(tmp_path).checkpoint
        assert held is not None
        assert marks() == [held.version, held.version - 1]
