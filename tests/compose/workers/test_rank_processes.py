"""The ranks of a trainer while it stands by, and when it becomes active."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Barrier, Event, Lock

import pytest
import torch

from rollcall.compose.workers.rank_processes import follow
from rollcall.compose.workers.run_trainer import sole_trainer, train
from rollcall.trainer.checkpoints import checkpoint as checkpoints
from tests.support.tiny_run import RECIPE, World

WAIT_S = 120.0


class ThreadRanks:
    """Two ranks that are threads of this process; each holds every tensor whole.

    Once they have met one of them runs at a time, for models are not loaded by two threads at once.
    """

    count = 2

    def __init__(self, rank: int, said: list[bytes], met: Barrier, runs: Lock) -> None:
        self.rank, self.said, self.met, self.runs = rank, said, met, runs
        self.words: list[bytes] = []
        self.left = Event()

    def all_gather(self, message: bytes) -> list[bytes]:
        if self.words:
            self.runs.release()
        self.words.append(message)
        self.met.wait(WAIT_S)
        self.said[self.rank] = message
        self.met.wait(WAIT_S)
        said = list(self.said)
        assert self.runs.acquire(timeout=WAIT_S)
        return said

    def broadcast(self, message: bytes = b"") -> bytes:
        return self.all_gather(message)[0]

    def spread(self, model: torch.nn.Module) -> None:
        """Keep all of it."""

    def leave(self) -> None:
        self.runs.release()
        self.left.set()


@pytest.fixture
def pair() -> tuple[ThreadRanks, ThreadRanks]:
    shared = [b"", b""], Barrier(2), Lock()
    return ThreadRanks(0, *shared), ThreadRanks(1, *shared)


@contextmanager
def leading(world: World, rank: ThreadRanks, *stopping: bool) -> Iterator[None]:
    """Run rank 0 as a trainer in a thread that is stopped at the latest after its first request."""
    asked = iter(stopping)
    with ThreadPoolExecutor(1) as pool:
        stop = partial(next, asked, True)
        led = pool.submit(train, world.factory, "training", world.folder, stop, rank)
        yield
        led.result(WAIT_S)


def test_standby_ranks_leave_without_comparing_the_weights(
    tmp_path: Path, pair: tuple[ThreadRanks, ThreadRanks]
) -> None:
    world = World(tmp_path, RECIPE)
    first, second = pair
    with (
        sole_trainer(world.folder.directory, lambda: False),
        leading(world, first, False, True),
    ):
        follow(world.folder, world.settings.training, second)

    assert first.left.is_set()
    assert second.left.is_set()
    # Not even the initial weights are compared: they are the other trainer's, and change
    assert [len(each.words) for each in pair] == [1, 1]


def test_active_ranks_make_the_first_version_together_and_leave(
    tmp_path: Path, pair: tuple[ThreadRanks, ThreadRanks]
) -> None:
    world = World(tmp_path, RECIPE)
    with leading(world, pair[0], False):
        follow(world.folder, world.settings.training, pair[1])

    assert [*checkpoints.kept(world.folder.run().checkpoints)] == [0]
    assert pair[0].left.is_set()
    assert pair[1].left.is_set()
