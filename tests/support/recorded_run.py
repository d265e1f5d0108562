"""A log of rollouts that have ended, for the commands that read history again."""

import io
from collections.abc import Callable

from rich.console import Console

from rollcall.schemas.messages import RolloutRequest, ScoredTrajectory, Task
from tests.support.memory_cluster import CORRIDOR, POLICY, MemoryCluster

SCORED = "t.trajectories.scored"


def recorded() -> MemoryCluster:
    """Two rollouts each of four tasks; those of odd seeds fall at the first door."""
    made = MemoryCluster()
    made.hire(lambda call: "fall" if b"odd" in repr(call.messages).encode() else "left")
    for number in range(8):
        seed = number // 2
        task = Task(CORRIDOR, seed=seed, system="odd" if seed % 2 else "")
        made.ask(
            RolloutRequest(
                f"r{number}",
                task,
                policy_id=POLICY,
                run_id="run",
                group_id=f"g{seed}",
                group_size=2,
            )
        )
    made.finish()
    return made


def scored(cluster: MemoryCluster, scoring_id: str) -> dict[str, ScoredTrajectory]:
    """By rollout what was written first."""
    found: dict[str, ScoredTrajectory] = {}
    for record in cluster.log.all(SCORED):
        message = cluster.codec.decode(record.value, ScoredTrajectory)
        if message.scoring_id == scoring_id:
            found.setdefault(message.trajectory.rollout_id, message)
    return found


def page(show: Callable[[Console], None]) -> str:
    out = io.StringIO()
    show(Console(file=out, width=160))
    return out.getvalue()
