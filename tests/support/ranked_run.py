"""Whole runs on the in-memory log, one after the other, whose trainer is several processes.

`python -m tests.support.ranked_run RANK COUNT DIRECTORY`: DIRECTORY holds a folder for each run,
with its recipe. Rank 0 has the log, and everybody who works on it; the others follow it. In the end
each run is trained again from its record, as `rollcall retrain` does.
"""

import sys
from pathlib import Path
from typing import Any

import orjson
import torch

from rollcall.compose.pages.retraining_page import retrain_and_tell
from rollcall.compose.processes import die_with_parent
from rollcall.compose.runs import run_folder
from rollcall.compose.settings import Settings
from rollcall.compose.workers.rank_processes import sharded
from rollcall.compose.workers.run_trainer import run_trainer
from rollcall.schemas.errors import RollcallError
from rollcall.trainer.learner.ranks import ProcessRanks
from tests.support.tiny_run import World

RECIPE, SAID, AGAIN = "recipe.toml", "said.json", "again.json"
REFUSED = 2
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


def main(rank: str, count: str, directory: str) -> int:
    die_with_parent()
    torch.set_num_threads(1)
    place = Path(directory)
    ranks = ProcessRanks.join("cpu", f"file://{place / 'meet'}", int(rank), int(count))
    runs = sorted(path.parent for path in place.glob(f"*/{RECIPE}"))
    try:
        if ranks.rank:
            for _ in runs:
                follow(ranks)
        worlds = [] if ranks.rank else [lead(ranks, run) for run in runs]
        ranks.leave()
        for world, run in zip(worlds, runs, strict=False):
            train_again(world, run)
    except RollcallError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
