"""Learners of several processes on one model, each job's processes forked off this one.

`python -m tests.support.rank_jobs MODEL OUT JOB…`: a job is COUNT or COUNT:KIND. So libraries are
imported once for all; nothing here computes before it forks.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
import torch
import torch.distributed.fsdp

from rollcall.compose.processes import die_with_parent
from rollcall.compose.workers.rank_processes import require_same_checkpoint
from rollcall.schemas.errors import RollcallError
from rollcall.schemas.rules import RuleChoice
from rollcall.schemas.weights import to_safetensors
from rollcall.trainer.checkpoints.checkpoint import Checkpoint, load_latest, seal
from rollcall.trainer.checkpoints.manifest import tensors_of
from rollcall.trainer.checkpoints.rank_files import RankFiles, parts_of_state, write_rank
from rollcall.trainer.checkpoints.shards import PartsFile
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.config.tables import Lora
from rollcall.trainer.learner.ranks import ProcessRanks, RankMessage
from rollcall.trainer.learner.sharded_learner import ShardedLearner
from rollcall.trainer.learner.step import Learner
from tests.support.changed_config import changed
from tests.support.scored_trajectories import some_samples

CONFIG = LearnerConfig(entropy=0.01, lr=1e-2, steps=20, micro_batch_tokens=30)
KEPT = changed(CONFIG, kl="k3", minibatch=6)
SAVE, SAVED = "save", "saved"


class Exact(Learner):
    """In float64, so that what is left is the order of sums."""

    def _spread(self) -> None:
        self.model.double()


class ExactRanks(ShardedLearner):
    def _spread(self) -> None:
        self.model.double()
        super()._spread()


class SavingRanks(ExactRanks):
    """Each rank is a process that writes its own part of a checkpoint; rank 0 seals it."""

    def save(self, root: Path) -> None:
        with self._all(SAVE, root=str(root)):
            self._save(root)

    def _follow(self, call: str, words: RankMessage) -> None:
        if call == SAVE:
            self._save(Path(str(words.plain["root"])))
        else:
            super()._follow(call, words)

    def _save(self, root: Path) -> None:
        state = self.state()
        parts = parts_of_state(state, self.ranks.rank, self.ranks.count)
        said = self.ranks.all_gather(orjson.dumps(asdict(write_rank(root, parts))))
        if self.ranks.rank == 0:
            seal(root, Checkpoint(state, parent=-1), list(map(files_of, said)))


def files_of(said: bytes) -> RankFiles:
    """What a rank has written, as it told it."""
    kinds = orjson.loads(said)["kinds"]
    return RankFiles(
        {
            kind: PartsFile(**file | {"tensors": tensors_of(file["tensors"])})
            for kind, file in kinds.items()
        }
    )


def save_and_go_on(learner: SavingRanks, out: Path) -> None:
    """A step, a checkpoint by all, and the step that is compared."""
    learner.step(some_samples(0))
    learner.save(out.parent / SAVED)
    write(learner, [learner.step(some_samples(1))], out)


def go_on_from_saved(learner: Learner, out: Path) -> None:
    """Load the newest checkpoint, note what was loaded, and take the step that is compared."""
    found = load_latest(out.parent / SAVED).checkpoint
    assert found is not None
    learner.load(found.state)
    write(learner, [], out.with_name(f"{out.name}-loaded"))
    write(learner, [learner.step(some_samples(1))], out)


def train(learner: Learner, out: Path) -> None:
    """A step, another that is taken back by a load, as a restart does, and one from there."""
    told = [learner.step(some_samples(0))]
    snapshot = learner.snapshot()
    learner.step(some_samples(7))
    with snapshot.reading() as state:
        learner.load(state)
    write(learner, [*told, learner.step(some_samples(1))], out)


def train_once(learner: Learner, out: Path) -> None:
    write(learner, [learner.step(some_samples(0))], out)


def write(learner: Learner, told: list[dict[str, float]], out: Path) -> None:
    """All that came of it."""
    state = learner.state()
    for part in ("weights", "optimiser", "rng"):
        out.with_suffix(f".{part}").write_bytes(to_safetensors(getattr(state, part)))
    learner.published = "bfloat16"  # the others are told
    canary = learner.canary().logprobs.hex()
    out.write_bytes(orjson.dumps({"told": told, "canary": canary, "version": learner.version}))


def disagree(learner: Learner, out: Path) -> None:
    msg = "what differs is refused before anything is computed"
    raise AssertionError(msg)


def go_on_after_a_death(learner: Learner, out: Path) -> None:
    """The other rank is gone: nothing may wait for it."""
    learner.step(some_samples(0))


JOBS: dict[str, tuple[LearnerConfig, Callable[[Any, Path], None]]] = {
    "m2po": (
        changed(CONFIG, loss="m2po", minibatch=6, kl="k3", gradient_checkpointing=True),
        train,
    ),
    "ewma": (
        changed(
            CONFIG,
            loss="ppo_ewma",
            packing="packed",
            advantage=RuleChoice("reinforce_pp", (("beta", 0.1),)),
        ),
        train_once,
    ),
    "lora": (changed(CONFIG, lora=Lora(rank=2, alpha=8.0), kl="k3"), train),
    "adapter": (changed(CONFIG, lora=Lora(rank=2, alpha=8.0), adapter_alone=True), train),
    "saves": (KEPT, save_and_go_on),
    "loads": (KEPT, go_on_from_saved),
    "other": (CONFIG, disagree),
    "elsewhere": (CONFIG, disagree),
    "dies": (CONFIG, go_on_after_a_death),
}


def run(model: str, out: Path, job: str, rank: int) -> None:
    count, _, kind = job.partition(":")
    config, play = JOBS[kind]
    if kind == "other" and rank == 1:
        config = changed(config, lr=0.5)
    torch.set_num_threads(1)
    ranks = ProcessRanks.join("cpu", f"file://{out}.meet", rank, int(count))
    try:
        learner = (SavingRanks if kind == "saves" else ExactRanks)(model, config, ranks)
        if kind == "elsewhere":
            require_same_checkpoint(ranks, out.parent / f"checkpoints{rank}")
        if rank and kind == "dies":
            os._exit(1)
        if rank:
            learner.follow()
        else:
            play(learner, out)
            learner.end()
    except RollcallError as error:
        out.with_suffix(f".error{rank}").write_text(f"{type(error).__name__}: {error}")
    ranks.leave()


def place_of(job: str) -> str:
    """The name of a job's files."""
    return job.replace(":", "-")


def main(model: str, out: str, *jobs: str) -> None:
    for job in jobs:
        children = []
        for rank in range(int(job.partition(":")[0])):
            child = os.fork()
            if child == 0:
                die_with_parent()
                try:
                    run(model, Path(out) / place_of(job), job, rank)
                finally:
                    os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
