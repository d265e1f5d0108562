"""A checkpoint is complete or absent, and resuming from it changes no bit."""

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import xxhash

from rollcall.schemas import atomic_files
from rollcall.schemas.errors import Refused, WeightsDiffer
from rollcall.schemas.messages import Consumed
from rollcall.schemas.weights import RawTensor
from rollcall.trainer.checkpoints import checkpoint as checkpoint_module
from rollcall.trainer.checkpoints import shards
from rollcall.trainer.checkpoints.checkpoint import (
    Checkpoint,
    abandon,
    kept,
    load_latest,
    next_version,
    prune,
    require_recipe,
    save,
    seal,
)
from rollcall.trainer.checkpoints.consumption import Leader
from rollcall.trainer.checkpoints.manifest import MANIFEST, read_body
from rollcall.trainer.checkpoints.rank_files import parts_of_state, write_rank
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.curation.drawn_groups import LedgerState
from rollcall.trainer.curation.drops import Tally
from rollcall.trainer.learner.step import Learner
from tests.support.changed_config import changed
from tests.support.scored_trajectories import some_samples

CONFIG = LearnerConfig(lr=1e-2, steps=20)


@pytest.fixture
def checkpoint(model_directory: str) -> Checkpoint:
    learner = Learner(model_directory, CONFIG, version=4)
    learner.step(some_samples(0))
    return Checkpoint(
        learner.state(),
        parent=4,
        config_digest=CONFIG.digest(),
        consumed=(Consumed("t", 1, 3, (5, 7), "id"), Consumed("t", 2, 0, ())),
        recent=("r:0:a", "g:b"),
        drops={"stale": Tally(3, 40)},
        abandoned=((2, 3),),
        pending={"policy_version": b"\0\1\xff", "train_step": b""},
        used=64,
        book=LedgerState(40, 30, b"\x80\x01", (31, 33), 2, (Consumed("r", 0, 9, (), "id"),)),
        leaders=(Leader("t", 1, 8, 4), Leader("r", 0, 9, 2)),
    )


def test_resuming_from_a_checkpoint_equals_an_uninterrupted_run(
    model_directory: str, tmp_path: Path
) -> None:
    first = Learner(model_directory, CONFIG)
    for number in range(3):
        first.step(some_samples(number))
    save(tmp_path, Checkpoint(first.state(), parent=2))
    second = Learner(model_directory, changed(CONFIG, seed=9))
    found = load_latest(tmp_path).checkpoint
    assert found is not None
    second.load(found.state)

    metrics = [[learner.step(some_samples(n)) for n in (3, 4)] for learner in (first, second)]

    assert metrics[0] == metrics[1]
    assert first.state() == second.state()
    assert (second.version, second.steps_done) == (5, 5)


def test_a_saved_checkpoint_loads_unchanged(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = save(tmp_path, checkpoint)

    found = load_latest(tmp_path)

    assert found.checkpoint == checkpoint
    assert (found.path, found.passed_over) == (path, ())
    assert not list(tmp_path.rglob("*.tmp"))


def by_ranks(root: Path, checkpoint: Checkpoint, world: int) -> Path:
    state = checkpoint.state
    own = [
        replace(state, rng={"torch": RawTensor("U8", (1,), bytes([rank]))}) for rank in range(world)
    ]
    written = [write_rank(root, parts_of_state(each, rank, world)) for rank, each in enumerate(own)]
    return seal(root, checkpoint, written)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_a_checkpoint_of_two_ranks_is_loaded_by_any_number(
    world: int, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    by_ranks(tmp_path, checkpoint, 2)

    found = [load_latest(tmp_path, rank, world) for rank in range(world)]

    loaded = [each.checkpoint for each in found if each.checkpoint is not None]
    assert len(loaded) == world
    for kind in ("weights", "optimiser"):
        for name, tensor in getattr(checkpoint.state, kind).items():
            parts = [getattr(each.state, kind)[name] for each in loaded]
            whole = b"".join(part.data for part in parts) if tensor.shape else parts[-1].data
            assert whole == tensor.data
    assert [each.state.rng["torch"].data[0] for each in loaded] == [0, 1, 0, 0][:world]
    assert {each.consumed for each in loaded} == {checkpoint.consumed}


def test_a_learner_resumes_from_a_checkpoint_of_two_ranks(
    model_directory: str, tmp_path: Path
) -> None:
    first = Learner(model_directory, CONFIG)
    first.step(some_samples(0))
    state = first.state()
    written = [write_rank(tmp_path, parts_of_state(state, rank, 2)) for rank in (0, 1)]
    seal(tmp_path, Checkpoint(state, parent=0), written)
    second = Learner(model_directory, changed(CONFIG, seed=9))
    found = load_latest(tmp_path).checkpoint
    assert found is not None
    second.load(found.state)

    assert first.step(some_samples(1)) == second.step(some_samples(1))
    assert first.state() == second.state()


def test_a_checkpoint_with_missing_parts_is_skipped_and_reported(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    older = replace(checkpoint, state=replace(checkpoint.state, version=4), parent=3)
    save(tmp_path, older)
    path = by_ranks(tmp_path, checkpoint, 2)
    next(path.glob("weights-00001-*")).unlink()

    found = load_latest(tmp_path)

    assert found.checkpoint == older
    assert "weights-00001" in found.passed_over[0]
    assert "is not there" in found.passed_over[0]


def test_a_checkpoint_is_not_sealed_without_all_ranks(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    first = write_rank(tmp_path, parts_of_state(checkpoint.state, 0, 2))

    with pytest.raises(WeightsDiffer, match="is a rank missing"):
        seal(tmp_path, checkpoint, [first])
    with pytest.raises(Refused, match="a world of 0"):
        seal(tmp_path, checkpoint, [])
    assert load_latest(tmp_path).checkpoint is None


def test_the_manifest_lists_the_parts_of_every_tensor(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    body = read_body(by_ranks(tmp_path, checkpoint, 2))

    name, tensor = next((n, t) for n, t in checkpoint.state.weights.items() if len(t.shape) == 2)
    written = body["tensors"]["weights"][name]
    first, second = written["shards"]
    rows = -(-tensor.shape[0] // 2)
    cut = rows * len(tensor.data) // tensor.shape[0]
    assert (written["dtype"], written["shape"]) == (tensor.dtype, list(tensor.shape))
    assert (first["offset"], first["shape"]) == ([0, 0], [rows, tensor.shape[1]])
    assert second["offset"] == [rows, 0]
    assert first["digest"] == f"xxh3:{xxhash.xxh3_128_hexdigest(tensor.data[:cut])}"
    assert second["digest"] == f"xxh3:{xxhash.xxh3_128_hexdigest(tensor.data[cut:])}"
    assert (body["format"], body["world_size"]) == (3, 2)


class Died(Exception):
    """Raised at the point where a test ends the trainer."""


@pytest.mark.parametrize("again", [False, True])
def test_a_crash_at_any_point_leaves_the_old_or_new_checkpoint(
    again: bool, checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every write comes to the disk by `sync_to_disk`;
    the same version may be written once more."""
    version = checkpoint.version if again else 4
    older = replace(checkpoint, state=replace(checkpoint.state, version=version), used=1)
    reached, outcomes = 0, []
    while True:
        root = tmp_path / str(reached)
        save(root, older)
        left = reached

        def dies(path: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Died

        with monkeypatch.context() as patch:
            for module in (atomic_files, shards, checkpoint_module):
                patch.setattr(module, "sync_to_disk", dies)
            with suppress(Died):
                save(root, checkpoint)
        outcomes.append(load_latest(root).checkpoint)
        if left >= 0:
            break
        save(root, checkpoint)
        assert load_latest(root).checkpoint == checkpoint
        assert not list(root.rglob("*.tmp"))
        reached += 1

    new = outcomes.index(checkpoint)
    assert outcomes == [older] * new + [checkpoint] * (len(outcomes) - new)
    assert new >= 4


def test_a_checkpoint_may_be_moved(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save(tmp_path / "here", checkpoint)
    shutil.move(tmp_path / "here", tmp_path / "there")

    assert load_latest(tmp_path / "there").checkpoint == checkpoint


def test_an_empty_folder_has_no_checkpoint(tmp_path: Path) -> None:
    assert load_latest(tmp_path / "nothing").checkpoint is None


FILES = [MANIFEST, "weights-*", "optimiser-*", "rng-*"]


@pytest.mark.parametrize("pattern", FILES)
@pytest.mark.parametrize("damage", ["gone", "cut", "flipped"])
def test_a_damaged_checkpoint_is_skipped_with_a_reason(
    checkpoint: Checkpoint, tmp_path: Path, pattern: str, damage: str
) -> None:
    older = replace(checkpoint, state=replace(checkpoint.state, version=4), parent=3)
    save(tmp_path, older)
    (file,) = save(tmp_path, checkpoint).glob(pattern)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(data if damage == "flipped" else data[: len(data) // 2])

    found = load_latest(tmp_path)

    assert found.checkpoint == older
    assert len(found.passed_over) == 1
    assert found.passed_over[0].startswith("v00000005: ")


def test_a_crash_before_the_manifest_leaves_no_checkpoint(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    directory = save(tmp_path, checkpoint)
    (directory / MANIFEST).rename(directory / f"{MANIFEST}.tmp")

    assert load_latest(tmp_path).checkpoint is None
    assert save(tmp_path, checkpoint) == directory
    assert load_latest(tmp_path).checkpoint == checkpoint


def test_pruning_keeps_the_newest_and_clears_incomplete_folders(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    for version in range(4):
        save(tmp_path, replace(checkpoint, state=replace(checkpoint.state, version=version)))
    (tmp_path / "v00000000" / MANIFEST).unlink()
    (tmp_path / "v00000009").mkdir()

    gone = prune(tmp_path, keep=2)

    assert sorted(path.name for path in gone) == ["v00000000", "v00000001"]
    left = ["v00000002", "v00000003", "v00000009"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left


@pytest.mark.parametrize(
    ("every", "left"),
    [(0, [10, 11, 12]), (1, [*range(1, 13)]), (4, [1, 5, 9, 10, 11, 12]), (99, [1, 10, 11, 12])],
)
def test_repeated_pruning_keeps_the_first_and_every_nth_checkpoint(
    every: int, left: list[int], checkpoint: Checkpoint, tmp_path: Path
) -> None:
    for version in range(1, 13):
        save(tmp_path, replace(checkpoint, state=replace(checkpoint.state, version=version)))
        prune(tmp_path, keep=3, every=every)

    assert list(kept(tmp_path)) == left
    assert prune(tmp_path, keep=3, every=every) == ()


def test_a_checkpoint_of_another_configuration_is_refused_with_the_remedy(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    path = save(tmp_path, checkpoint)
    require_recipe(path, CONFIG.digest(), "never said")

    with pytest.raises(Refused, match=r"v00000005 .*; put it back"):
        require_recipe(path, changed(CONFIG, lr=1.0).digest(), "put it back")


def test_pruning_never_removes_the_last_checkpoint(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save(tmp_path, checkpoint)

    assert prune(tmp_path, keep=0) == ()
    assert load_latest(tmp_path).checkpoint == checkpoint


def test_version_numbers_are_never_used_twice() -> None:
    assert next_version(-1) == 0
    assert next_version(7, held=5) == 8
    assert next_version(4, held=5) == 6


def test_versions_announced_after_the_checkpoint_are_abandoned() -> None:
    assert abandon((), held=5, highest_announced=5) == ()
    assert abandon((), held=5, highest_announced=4) == ()
    assert abandon(((2, 3),), held=5, highest_announced=7) == ((2, 3), (6, 7))
