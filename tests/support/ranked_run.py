"""Whole runs on the in-memory log, one after the other, whose trainer is several processes.

`python -m tests.support.ranked_run COUNT DIRECTORY`: DIRECTORY holds a folder for each run, with
its recipe. The ranks are forked off this process, so libraries are imported once for all of them.
Rank 0 has the log and all workers; the others follow it. In the end each run is trained again from
its record, as `rollcall retrain` does.
"""

import os
import sys
import traceback
from pathlib import Path
from typing import Any

import orjson
import torch
import transformers.models.gpt2.modeling_gpt2

from rollcall.compose.processes import die_with_parent
from rollcall.compose.runs import run_folder
from rollcall.compose.runs.retraining import retrain_and_tell
from rollcall.compose.settings import Settings
from rollcall.compose.workers.rank_processes import sharded
from rollcall.compose.workers.run_trainer import run_trainer
from rollcall.schemas.errors import RollcallError
from rollcall.trainer.learner import sharded_learner
from rollcall.trainer.learner.ranks import ProcessRanks
from tests.support.tiny_run import World

RECIPE, SAID, AGAIN = "recipe.toml", "said.json", "again.json"
IMPORTED = (sharded_learner, transformers.models.gpt2.modeling_gpt2)
"""Modules that a rank would import by itself."""
RUN_ID = "ranked"
"""Rollouts are named by it, and their names decide in which order groups come to be complete: runs
of two names may take their steps on other batches."""


def announced(world: World) -> dict[str, Any]:
    """What servers are told, and what the steps were made of."""
    steps = [
        [step.version, [rollout.rollout_id for rollout in step.trajectories]]
        for step in world.steps()
    ]
    versions = [[each.version, len(each.deltas), each.precision] for each in world.versions()]
    return {"versions": versions, "steps": steps}


def lead(ranks: ProcessRanks, directory: Path) -> World:
    """Train the run to its end, and leave what was announced in a file."""
    world = World(directory, (directory / RECIPE).read_text(), run_id=RUN_ID)
    world.begin()
    ranks.broadcast(str(world.folder.directory).encode())
    learner = sharded(world.folder, world.settings.training, ranks)
    trainer = run_trainer(world.factory, "training", world.folder, learner)
    world.train(trainer)
    trainer.saver.save_trained(wait=True)
    learner.end()
    world.close()
    said = {"run": str(world.folder.directory), **announced(world)}
    (directory / SAID).write_bytes(orjson.dumps(said))
    return world


def train_again(world: World, directory: Path) -> None:
    """Leave the report in a file, and what was told meanwhile."""
    told: list[str] = []
    run = world.folder.trained()
    report = retrain_and_tell(world, run, (1, 2), version=None, threads=1, tell=told.append)
    (directory / AGAIN).write_bytes(orjson.dumps(report | {"told": told}))


def follow(ranks: ProcessRanks) -> None:
    """Do what rank 0 says, of the run that it names."""
    folder = run_folder.load(Path(ranks.broadcast().decode()))
    settings = Settings().training
    sharded(folder, settings, ranks).follow()


def run(rank: int, count: int, place: Path) -> int:
    """Be one rank of all runs; return the exit code."""
    torch.set_num_threads(1)
    ranks = ProcessRanks.join("cpu", f"file://{place / 'meet'}", rank, count)
    runs = sorted(path.parent for path in place.glob(f"*/{RECIPE}"))
    try:
        if rank:
            for _ in runs:
                follow(ranks)
        worlds = [] if rank else [lead(ranks, run) for run in runs]
        ranks.leave()
        for world, run in zip(worlds, runs, strict=False):
            train_again(world, run)
    except RollcallError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def main(count: str, directory: str) -> int:
    children = []
    for rank in range(int(count)):
        child = os.fork()
        if child == 0:
            die_with_parent()
            code = 1
            try:
                code = run(rank, int(count), Path(directory))
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
