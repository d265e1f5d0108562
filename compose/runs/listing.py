"""The runs that have a folder here or a step in the log, and removal of one that is over.

Of a removed run the topics and groups go. Its records stay in the journal, in the trajectories and
in `train.steps`, so `curve`, `eval` and `retrain` still work; its calls topic holds nothing that
the journal does not.
"""

import fcntl
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcall.compose.files import read_state
from rollcall.compose.runs import run_folder
from rollcall.compose.runs.run_folder import RunFolder, find_or_none
from rollcall.consumers.heldout import HeldOut
from rollcall.consumers.history.reading.local_programs import watched_world
from rollcall.consumers.history.runs.run_curve import RunCurve, held_out_of, steps_of_runs
from rollcall.consumers.history.waiting.waiting import WaitReader
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import TrainStep
from rollcall.schemas.names import unknown_name
from rollcall.schemas.weights_store import listed
from rollcall.schemas.weights_store import remove as delete

if TYPE_CHECKING:
    from rollcall.compose.cluster import Cluster

LOCK_FILE = "trainer.lock"
OPEN_NAMED = 3
"""The most open rollouts that are named in a refusal."""


@dataclass(slots=True)
class RunEntry:
    """One run in the list."""

    run_id: str
    recipe: str
    policy_id: str
    started_ms: int
    """The time at which its folder was made, else that of its first step."""
    steps: int
    version: int | None
    """The newest version with a step."""
    success: float | None
    """The success of the last complete held-out evaluation."""
    timers: dict[str, dict[str, float]]
    """The p50 and p95 of its rollouts' phases, in seconds; empty until it is finished."""
    state: str
    """The state: finished, training, stopped, or elsewhere (it has no folder here)."""


def list_runs(cluster: "Cluster") -> list[RunEntry]:
    """Return all runs, the latest last. Held-out results are read for unfinished ones."""
    written = steps_of_runs(cluster)
    folders = {folder.name: folder for folder in run_folder.all_of(cluster.settings.state())}
    names = folders.keys() | written.keys()
    unfinished = {name for name in names if name not in folders or not _summary(folders[name])}
    rules = {name: folders[name].held_out_rule() for name in unfinished & folders.keys()}
    heldout = held_out_of(cluster, unfinished, rules)
    entries = [
        _entry(name, written.get(name, []), folders.get(name), heldout.get(name)) for name in names
    ]
    return sorted(entries, key=lambda run: (run.started_ms, run.run_id))


def _entry(
    run_id: str,
    written: list[tuple[TrainStep, int]],
    folder: RunFolder | None,
    heldout: HeldOut | None,
) -> RunEntry:
    steps = [step for step, _ in written]
    made = (folder.root / run_folder.RUN_FILE).stat().st_mtime if folder else 0.0
    curve = RunCurve.of(run_id, steps, heldout)
    success = curve.heldout[-1][1] if curve.heldout else None
    summary = _summary(folder) if folder else {}
    return RunEntry(
        run_id=run_id,
        recipe=folder.recipe.name if folder else "",
        policy_id=folder.policy_id if folder else steps[0].policy_id,
        started_ms=int(made * 1000) if folder else written[0][1],
        steps=len(curve.steps),
        version=curve.steps[-1].version if curve.steps else None,
        success=success if heldout or not folder else summary.get("success_after"),
        timers=summary.get("timers", {}),
        state=_state(folder) if folder else "elsewhere",
    )


def _summary(folder: RunFolder) -> dict[str, Any]:
    """Read the summary that was written at the run's end; empty before."""
    path = folder.root / run_folder.SUMMARY_FILE
    summary: dict[str, Any] = read_state(path, dict[str, Any]) or {}
    own: dict[str, Any] = summary.get("policies", {}).get(folder.part, {})
    return summary | own


def _state(folder: RunFolder) -> str:
    if _summary(folder):
        return "finished"
    return "training" if is_training(folder) else "stopped"


def is_training(folder: RunFolder) -> bool:
    """Return True if a trainer holds the run's lock; the check takes a shared lock briefly."""
    lock = folder.directory / LOCK_FILE
    if not lock.exists():
        return False
    with lock.open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


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
