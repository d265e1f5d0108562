"""Held-out success of a run's unpublished policies, on an in-memory log.

It uses the requests, programs, environments and scorers of the run's evaluations, greedy, in this
process; nothing is written to the run's topics, and nothing is kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rollcall.compose.runs.publish_policy import announcement_of
from rollcall.compose.runs.run_folder import RunFolder
from rollcall.compose.settings import Settings
from rollcall.compose.workers.engines import weights_engine
from rollcall.compose.workers.worker_factory import WorkerFactory
from rollcall.consumers.heldout import HeldOut
from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.consumers.loop.loop import Loop
from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import ScoredTrajectory
from rollcall.schemas.topics import Topics, wanted


@dataclass(frozen=True, slots=True)
class HeldOutSuccess:
    """The results of the held-out seeds."""

    succeeded: frozenset[str]
    """The rollouts that succeeded, by ids that are the same for every policy."""
    rollouts: int

    @property
    def share(self) -> float:
        """Return the share of rollouts that succeeded."""
        return len(self.succeeded) / self.rollouts if self.rollouts else 0.0


def require_alone(folder: RunFolder) -> None:
    """Raise Refused for a run of several policies, whose rollouts one policy cannot play alone."""
    if folder.part or folder.others():
        msg = (
            f"run {folder.run_id!r} has several policies, and one of them alone plays no held-out "
            "rollout; add --no-held-out"
        )
        raise Refused(msg)


def held_out(
    folder: RunFolder, directories: Mapping[str, Path], settings: Settings
) -> dict[str, HeldOutSuccess]:
    """Return each policy directory's result on the run's held-out seeds. Raises Refused."""
    require_alone(folder)
    return {name: _played(folder, directory, settings) for name, directory in directories.items()}


def _played(folder: RunFolder, directory: Path, settings: Settings) -> HeldOutSuccess:
    recipe, topics = folder.recipe, Topics(settings.prefix)
    log, codec = MemoryLog(wanted(settings.prefix, [folder.policy_id])), Codec(LocalRegistry())
    factory = WorkerFactory(log, codec, topics, settings, watched=False)
    engine = weights_engine(folder.policy_id, directory, settings.models)
    loops = [
        factory.agents("agents"),
        factory.models("models", engine),
        factory.environments("environments"),
        factory.rewards("rewards", recipe.scorers, recipe.scoring_id),
    ]
    version = announcement_of(directory, folder.policy_id, 0, directory / "announced")
    log.append(topics.versions, version.policy_id.encode(), codec.encode(topics.versions, version))
    plan = HeldOut(folder.heldout())
    asked = list(plan.plan.requests(0))
    for request in asked:
        value = codec.encode(topics.requests, request)
        log.append(topics.requests, request.rollout_id.encode(), value)
    _to_the_end(log, codec, topics, plan, loops)
    results = plan.results.get(0, {})
    return HeldOutSuccess(frozenset(n for n, each in results.items() if each.success), len(asked))


def _to_the_end(
    log: MemoryLog, codec: Codec, topics: Topics, plan: HeldOut, loops: list[Loop]
) -> None:
    """Let all loops take turns until all rollouts are scored; each has its own deadline."""
    reader = log.reader([topics.scored])
    try:
        while not plan.complete(0):
            for loop in loops:
                loop.turn(0.0)
            for record in reader.poll(0.0):
                plan.take(codec.decode(record.value, ScoredTrajectory))
    finally:
        for loop in loops:
            loop.role.close()
