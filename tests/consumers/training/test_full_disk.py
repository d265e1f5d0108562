"""A really full disk: a small tmpfs, and the kernel's own ENOSPC."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rollcall.schemas import atomic_files
from rollcall.schemas.errors import DiskFull
from rollcall.trainer.checkpoints import checkpoint as checkpoints
from rollcall.trainer.checkpoints import shards
from tests.support.tiny_run import RECIPE, World

ASYNC = RECIPE.replace("group_size = 4\n", 'group_size = 4\nsave = "async"\n').replace(
    "[policy]\n", '[policy]\npublish = "bfloat16"\nweights = "delta"\n'
)
PAGE = 4096


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A separate file system of 16 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place)]
    try:
        made = subprocess.run(mount, capture_output=True, timeout=30)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if made.returncode:
        pytest.skip(f"a tmpfs may not be mounted: {made.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True, timeout=30)


def fill(disk: Path) -> None:
    """Fill it to the last page."""
    free = shutil.disk_usage(disk).free
    (disk / "ballast").write_bytes(bytes(free - free % PAGE))
    assert shutil.disk_usage(disk).free < PAGE


def goes_on(disk: Path, world: World) -> None:
    """With free space again, another trainer takes every remaining step."""
    (disk / "ballast").unlink()
    heir = world.trainer()
    world.train(heir)
    heir.saver.save_trained(wait=True)
    newest = {step.step: step for step in world.steps()}
    assert sorted(newest) == [1, 2, 3, 4]
    found = checkpoints.load_latest(world.folder.run().checkpoints)
    assert found.checkpoint is not None
    assert found.checkpoint.version == newest[4].version
    assert not list(disk.rglob("*.tmp"))


@pytest.mark.parametrize("text", [RECIPE, ASYNC], ids=["sync", "async"])
def test_a_full_disk_stops_training_before_the_step(disk: Path, text: str) -> None:
    world = World(disk, text)
    trainer = world.trainer()
    world.train(trainer, steps=1)
    trainer.saver.save_trained(wait=True)
    fill(disk)

    with pytest.raises(DiskFull, match=r"needs .* MB; training stands .* What could go: "):
        world.train(trainer)

    assert trainer.learner.steps_done == 1
    assert [version.version for version in world.versions()] == [0, 1]
    goes_on(disk, world)


@pytest.mark.parametrize("text", [RECIPE, ASYNC], ids=["sync", "async"])
@pytest.mark.parametrize("writer", [atomic_files, shards], ids=["weights", "checkpoint"])
def test_a_disk_that_fills_between_writes_leaves_announced_versions_intact(
    disk: Path, text: str, writer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(disk, text)
    trainer = world.trainer()
    world.train(trainer, steps=1)
    trainer.saver.save_trained(wait=True)
    sync_to_disk: Callable[..., Any] = writer.sync_to_disk

    def too_late(*arguments: Any, **named: Any) -> Any:
        if not (disk / "ballast").exists():
            fill(disk)
        return sync_to_disk(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(writer, "sync_to_disk", too_late)
        with pytest.raises(DiskFull, match="nothing announced is missing"):
            train_and_save(world, trainer)

    assert [version.version for version in world.versions()] == [0, 1]
    goes_on(disk, world)


def train_and_save(world: World, trainer: Any) -> None:
    world.train(trainer)
    trainer.saver.save_trained(wait=True)
