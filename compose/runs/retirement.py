"""Removal of the topics and groups of a run that is over.

Its records stay in the journal, in the trajectories and in `train.steps`, so `curve`, `eval` and
`retrain` still work; its calls topic holds nothing that the journal does not.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rollcall.compose.runs.listing import is_training
from rollcall.compose.runs.run_folder import RunFolder, find_or_none
from rollcall.consumers.history.reading.local_programs import watched_world
from rollcall.consumers.history.runs.run_curve import steps_of_runs
from rollcall.consumers.history.waiting.waiting import WaitReader
from rollcall.schemas.errors import Refused
from rollcall.schemas.names import unknown_name
from rollcall.schemas.weights_store import listed
from rollcall.schemas.weights_store import remove as delete

if TYPE_CHECKING:
    from rollcall.compose.cluster import Cluster

OPEN_NAMED = 3


@dataclass(frozen=True, slots=True)
class Remains:
    """The remains of a run."""

    run_id: str
    policy_id: str
    topics: dict[str, int]
    """Its topics with their partition counts."""
    groups: list[str]
    folder: Path | None
    weights: tuple[str, ...] = ()
    """URLs to which the run and its other policies published weights."""

    def lines(self) -> list[str]:
        """Return a line for each thing to remove."""
        lines = [f"topic {name}, {count} partitions" for name, count in self.topics.items()]
        lines += [f"group {name}" for name in self.groups]
        lines += [f"weights {url}" for url in self.weights]
        return [*lines, f"folder {self.folder}"] if self.folder else lines


def remains_of(cluster: "Cluster", name: str, *, folder: bool) -> Remains:
    """Find the remains of a run by id or folder; raises Refused if it is unknown or running.

    `folder`: include its checkpoints, weights and logs.
    """
    own = find_or_none(cluster.settings.state(), name)
    run_id = own.run_id if own else name
    steps = {} if own else steps_of_runs(cluster)
    if own is None and run_id not in steps:
        raise unknown_name("run", name, sorted(steps))
    if own is None and folder:
        msg = f"run {run_id!r} has no folder in {cluster.settings.state()}; leave --folder out"
        raise Refused(msg)
    policy_id = own.policy_id if own else steps[run_id][0][0].policy_id
    if own and is_training(own):
        msg = f"run {run_id!r} is training; end it with Ctrl-C, or `rollcall drain` its trainer"
        raise Refused(msg)
    calls = cluster.topics.calls(policy_id)
    topics = cluster.admin.partitions()
    prefix, suffix = cluster.settings.prefix, f".{policy_id}"
    groups = [g for g in cluster.log.group_names() if g.startswith(prefix) and g.endswith(suffix)]
    remains = Remains(
        run_id,
        policy_id,
        {calls: topics[calls]} if calls in topics else {},
        groups,
        own.directory if own and folder else None,
        _published_to(own) if own and folder else (),
    )
    _require_over(cluster, remains)
    return remains


def _published_to(own: RunFolder) -> tuple[str, ...]:
    urls = (part.publishing().url for part in own.parts())
    return tuple(url for url in urls if url)


def _require_over(cluster: "Cluster", remains: Remains) -> None:
    """Raise Refused while the run's policy is served or a rollout of it is open."""
    members = sorted({member.client_id for member in cluster.admin.members(remains.groups)})
    if members:
        msg = (
            f"{', '.join(members)} serve {remains.policy_id!r}; `rollcall drain {members[0]}` first"
        )
        raise Refused(msg)
    settings = cluster.settings
    world = watched_world(settings.agents.program_timeout_s)
    reader = WaitReader(cluster, cluster.admin, world, settings.rewards.scoring_id)
    open_ = sorted(reader.open_rollouts(remains.run_id, remains.policy_id))
    if open_:
        some = ", ".join([*open_[:OPEN_NAMED], *(["..."] if len(open_) > OPEN_NAMED else [])])
        msg = (
            f"{len(open_):,} rollouts of run {remains.run_id!r} are open ({some}); "
            "`rollcall waiting` says for what, `rollcall cancel` ends them"
        )
        raise Refused(msg)


def remove(cluster: "Cluster", remains: Remains) -> None:
    """Remove all of it; parts that are gone already are skipped. Raises Refused, Unavailable."""
    cluster.admin.delete_groups(remains.groups)
    cluster.admin.delete_topics(list(remains.topics))
    for url in remains.weights:
        for file in listed(url):
            delete(url, file.name)
    if remains.folder:
        shutil.rmtree(remains.folder)
