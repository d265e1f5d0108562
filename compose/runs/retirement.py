"""`rollcall runs retire`: a run that is over leaves no topic and no group behind.

What it did stays in the journal, in the trajectories and in `train.steps`, so `curve`, `eval` and
`retrain` go on working; its calls topic holds nothing that the journal does not.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from compose import curves
from compose.runs import listing
from consumers.history.local_programs import watched_world
from consumers.history.waiting import WaitReader
from schemas.errors import Refused
from schemas.names import unknown

if TYPE_CHECKING:
    from compose.cluster import Cluster

NAMED = 3


@dataclass(frozen=True, slots=True)
class Left:
    """What a run has left behind."""

    run_id: str
    policy_id: str
    topics: dict[str, int]
    """With their partition counts."""
    groups: list[str]
    folder: Path | None

    def lines(self) -> list[str]:
        """One for each thing that goes."""
        lines = [f"topic {name}, {count} partitions" for name, count in self.topics.items()]
        lines += [f"group {name}" for name in self.groups]
        return [*lines, f"folder {self.folder}"] if self.folder else lines


def left_by(cluster: "Cluster", name: str, *, folder: bool) -> Left:
    """What there is of a run, by its id or folder; raises Refused for one that is unknown or on.

    `folder`: its checkpoints, weights and logs too.
    """
    found = curves.folder_of(cluster, name)
    run_id = found.run_id if found else name
    steps = {} if found else curves.steps_of(cluster)
    if found is None and run_id not in steps:
        raise unknown("run", name, sorted(steps))
    if found is None and folder:
        msg = f"run {run_id!r} has no folder in {cluster.settings.state()}; leave --folder out"
        raise Refused(msg)
    policy_id = found.policy_id if found else steps[run_id][0][0].policy_id
    if found and listing.is_training(found):
        msg = f"run {run_id!r} is training; end it with Ctrl-C, or `rollcall drain` its trainer"
        raise Refused(msg)
    calls = cluster.topics.calls(policy_id)
    there = cluster.admin.partitions()
    ours = cluster.settings.prefix, f".{policy_id}"
    groups = [g for g in cluster.log.group_names() if g.startswith(ours[0]) and g.endswith(ours[1])]
    left = Left(
        run_id,
        policy_id,
        {calls: there[calls]} if calls in there else {},
        groups,
        found.directory if found and folder else None,
    )
    _require_over(cluster, left)
    return left


def _require_over(cluster: "Cluster", left: Left) -> None:
    """Raise Refused while somebody serves the run's policy or a rollout of it is open."""
    members = sorted({member.client_id for member in cluster.admin.members(left.groups)})
    if members:
        msg = f"{', '.join(members)} serve {left.policy_id!r}; `rollcall drain {members[0]}` first"
        raise Refused(msg)
    settings = cluster.settings
    world = watched_world(settings.agents.program_timeout_s)
    reader = WaitReader(cluster, cluster.admin, world, settings.rewards.scoring_id)
    open_ = sorted(reader.open_rollouts(left.run_id, left.policy_id))
    if open_:
        some = ", ".join([*open_[:NAMED], *(["..."] if len(open_) > NAMED else [])])
        msg = (
            f"{len(open_):,} rollouts of run {left.run_id!r} are open ({some}); `rollcall waiting` "
            "says for what, `rollcall cancel` ends them"
        )
        raise Refused(msg)


def remove(cluster: "Cluster", left: Left) -> None:
    """Remove all of it; what is gone already is none to mind. Raises Refused, Unavailable."""
    cluster.admin.delete_groups(left.groups)
    cluster.admin.delete_topics(list(left.topics))
    if left.folder:
        shutil.rmtree(left.folder)
