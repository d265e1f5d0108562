"""A real run with all of its policies on one in-memory log: it is what commands read history of."""

from pathlib import Path
from typing import Any

from rollcall.compose.runs import run_folder
from rollcall.compose.runs.recipe import parse_recipe
from rollcall.compose.settings import Settings
from rollcall.compose.workers.run_trainer import run_trainer
from rollcall.compose.workers.served_policy import run_engine
from rollcall.compose.workers.worker_factory import WorkerFactory
from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.consumers.loop.loop import Loop
from rollcall.consumers.training.trainer import Trainer
from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.messages import TrainStep
from rollcall.schemas.objects import ObjectStore
from rollcall.schemas.topics import Topics, wanted


class WholeRun:
    """Its workers take turns; any of them may be replaced."""

    def __init__(
        self, state: Path, text: str, name: str, *, seed: int, objects: ObjectStore | None = None
    ) -> None:
        self.folder = run_folder.create(state, parse_recipe(text, name), text, seed=seed)
        self.parts = self.folder.parts()
        self.topics = Topics("m.")
        self.log = MemoryLog(wanted("m.", [part.policy_id for part in self.parts], partitions=2))
        self.codec = Codec(LocalRegistry(), objects=objects)
        self.settings = Settings(state_dir=state, cache_dir=state / "cache")
        self.factory = WorkerFactory(
            self.log, self.codec, self.topics, self.settings, watched=False
        )
        scorers = {part.recipe.scoring_id: part.recipe.scorers for part in self.parts}
        self.loops = {
            "agents": self.factory.agents("agents"),
            "environments": self.factory.environments("environments"),
            **{part.name: self.server(part) for part in self.parts},
            **{
                f"by-{each}": self.factory.rewards(f"rewards-{each}", names, each)
                for each, names in scorers.items()
            },
        }

    def server(self, part: run_folder.RunFolder) -> Loop:
        return self.factory.models(f"models-{part.name}", run_engine(part, self.settings))

    def trainer(self, part: run_folder.RunFolder) -> Trainer:
        return run_trainer(self.factory, f"training-{part.name}", part)

    def turn(self, *trainers: Trainer) -> int:
        """One turn of everybody who is not done; how much has moved."""
        moved = sum(loop.turn(0.0) for loop in self.loops.values())
        return moved + sum(each.turn(0.0) for each in trainers if not each.done())

    def stop(self) -> None:
        for loop in self.loops.values():
            loop.stop(1.0)

    def read(self, topic: str, kind: type) -> list[Any]:
        return [self.codec.decode(record.value, kind) for record in self.log.all(topic)]

    def steps(self, part: run_folder.RunFolder) -> list[TrainStep]:
        found = self.read(self.topics.train_steps, TrainStep)
        return [step for step in found if step.policy_id == part.policy_id]
