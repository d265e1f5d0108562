"""A learner that is killed anywhere, again and again, and goes on from what it left on the disk.

`python -m tests.support.killed_learner MODEL OUT KIND KILLS SEED`: each life is a fork, so that
libraries are imported once; nothing here computes before it forks. A life trains on batches
that its steps number, and saves each step from a snapshot in a thread while it takes the next, in
the order of `StepSaver`: weights, checkpoint, then a line in `announced`, digest by version.
"""

import os
import signal
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import torch

from rollcall.compose.processes import die_with_parent
from rollcall.schemas.store_urls import local_path
from rollcall.schemas.weights_store import remove
from rollcall.trainer.checkpoints import checkpoint as checkpoints
from rollcall.trainer.checkpoints.checkpoint import Checkpoint
from rollcall.trainer.checkpoints.learner_state import LearnerState
from rollcall.trainer.checkpoints.rank_files import PublishedFile
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.config.tables import Lora
from rollcall.trainer.learner.snapshot import Snapshot
from rollcall.trainer.learner.step import Learner
from rollcall.trainer.weights import weights_files
from rollcall.trainer.weights.publication import Publication, Publishing
from rollcall.trainer.weights.weights_needs import besides
from tests.support.changed_config import changed
from tests.support.scored_trajectories import some_samples

CONFIG = LearnerConfig(entropy=0.01, lr=1e-2, steps=100_000, save="async")
KINDS = {
    "delta": (changed(CONFIG, lr=1e-6), Publishing("bfloat16", "delta", 4)),
    "adapter": (changed(CONFIG, lora=Lora(rank=2), adapter_alone=True), Publishing("", "adapter")),
}
LIFE_S = 0.4
ENOUGH = 200
"""So many steps no life comes to."""


def live(model: str, out: Path, kind: str, steps: int = ENOUGH) -> None:
    """Go on from the newest checkpoint until there are so many steps, or somebody ends it."""
    torch.set_num_threads(1)
    config, publishing = KINDS[kind]
    learner, publication = Learner(model, config), Publication(str(out / "weights"), publishing)
    found = checkpoints.load_latest(out / "checkpoints")
    assert not found.passed_over or not found.checkpoint or _are_torn(found.passed_over)
    newest = found.checkpoint.version if found.checkpoint else -1
    weights_files.clear_temporary(publication.where)
    weights_files.clear_unannounced(publication.where, newest)
    if found.checkpoint:
        learner.load(found.checkpoint.state)
        _say(out, "resumed", newest, publishing.digest(learner.tensors(), "tensors:"))
    with ThreadPoolExecutor(1) as saver:
        saving = saver.submit(_save, out, publication, learner.snapshot())
        while learner.steps_done < steps:
            learner.step(some_samples(learner.steps_done))
            saving.result()
            saving = saver.submit(_save, out, publication, learner.snapshot())
        saving.result()


def _save(out: Path, publication: Publication, snapshot: Snapshot[LearnerState]) -> None:
    with snapshot.reading() as state:
        made = publication.write(state.version, state.weights)
        sha256s = {} if publication.publishing.rounds else made.sha256s
        published = PublishedFile(local_path(made.newest.uri), sha256s)
        checkpoints.save(out / "checkpoints", Checkpoint(state, state.version - 1), published)
        version = state.version
    _say(out, "announced", version, made.weights_digest)
    checkpoints.prune(out / "checkpoints", 3, 0)
    there = weights_files.files_in(publication.where)
    for file in besides(there, checkpoints.kept(out / "checkpoints")):
        remove(publication.where, file.name)


def _are_torn(reasons: tuple[str, ...]) -> bool:
    """Whether all that was passed over is what a kill leaves: no manifest yet."""
    return all("FileNotFoundError" in reason and "manifest" in reason for reason in reasons)


def _say(out: Path, name: str, version: int, digest: str) -> None:
    line = f"{version} {digest}\n".encode()
    handle = os.open(out / name, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(handle, line)
    os.close(handle)


def main(model: str, out: str, kind: str, kills: str, seed: str) -> None:
    """So many lives, each ended after a while that the seed says."""
    dice, place = Random(int(seed)), Path(out)
    for _ in range(int(kills)):
        child = os.fork()
        if child == 0:
            die_with_parent()
            try:
                live(model, place, kind)
            except BaseException:
                traceback.print_exc()
            os._exit(3)
        began = (place / "announced").stat().st_size if (place / "announced").exists() else -1
        _wait_for_life(child, place, began)
        time.sleep(dice.uniform(0.0, LIFE_S))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "it ended by itself"


def _wait_for_life(child: int, out: Path, began: int) -> None:
    """Until this life has saved something: what comes before is reading libraries' files."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        path = out / "announced"
        if path.exists() and path.stat().st_size > began:
            return
        if os.waitpid(child, os.WNOHANG)[0]:
            sys.exit("a life ended by itself; above it says why")
        time.sleep(0.005)
    msg = "a life of a minute has saved nothing"
    raise AssertionError(msg)


if __name__ == "__main__":
    main(*sys.argv[1:])
