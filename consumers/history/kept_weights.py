"""A run's files of weights: what there is, who still needs it, what its trainer would let go.

By the log alone, the place where the weights lie, and the run's checkpoints; by the same functions
that its trainer goes by. What may be trained on again is told as the newest checkpoint has it.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from consumers.decode_in_order import decoded
from consumers.history.history import History
from consumers.history.training_record import TrainedRun
from consumers.history.version_use import VersionsInUse, VersionUse
from consumers.log.reading import read_all
from consumers.scored_places import scored_at
from schemas.messages import ScoredTrajectory, Trajectory
from trainer import weights_files
from trainer.replay import ReplayBook
from trainer.samples import versions_of
from trainer.weights_needs import KeptFile, WeightsNeeds, holders


@dataclass(frozen=True, slots=True)
class KeptWeights:
    """One file."""

    version: int
    kind: str
    """full, or delta."""
    base: int
    """The version that a delta is made from; -1 for full weights."""
    precision: str
    """Empty where no record of the version is left."""
    size_bytes: int
    announced_ms: int | None
    """None where the log does not know it."""
    needed_by: tuple[str, ...]
    """Nobody: it may go."""
    name: str


@dataclass(frozen=True, slots=True)
class WeightsReport:
    """All files of a run."""

    run_id: str
    policy_id: str
    where: str
    files: tuple[KeptWeights, ...]
    size_bytes: int
    may_go_bytes: int
    now_ms: int
    """Ages are counted from here: when anything was announced last."""


def kept_weights(
    history: History, run: TrainedRun, checkpoints: Collection[int], replay: ReplayBook
) -> WeightsReport:
    """What lies there now; `checkpoints` are versions that training goes on from, with `replay`.

    Raises Unavailable where the log or that place is away.
    """
    in_use = VersionsInUse(history, run.policy_id)
    use = in_use.announced()
    in_use.add_open(use)
    newest = max(use.announced_ms, default=-1)
    needs = WeightsNeeds(
        use.now_ms,
        use.announced_ms,
        checkpoints,
        use.open(),
        _buffered(history, run, use),
        awaited=run.config.scoring_versions(newest),
        replayed=_replayed(history, run, replay),
        requested=use.requested(),
    )
    there = weights_files.files_in(run.weights)
    found = holders(there, needs)
    files = tuple(_kept(file, use, found[file.version]) for file in there)
    return WeightsReport(
        run.run_id,
        run.policy_id,
        run.weights,
        files,
        sum(file.size_bytes for file in files),
        sum(file.size_bytes for file in files if not file.needed_by),
        use.now_ms,
    )


def _kept(file: KeptFile, use: VersionUse, needed_by: tuple[str, ...]) -> KeptWeights:
    return KeptWeights(
        file.version,
        "delta" if file.base >= 0 else "full",
        file.base,
        use.precisions.get(file.version, ""),
        file.size_bytes,
        use.announced_ms.get(file.version),
        needed_by,
        file.name,
    )


def _carried(trajectory: Trajectory, policy_id: str) -> set[int]:
    """The versions of a policy that have sampled its tokens."""
    if policy_id not in trajectory.policies:
        return set()
    index = trajectory.policies.index(policy_id)
    return set(versions_of(trajectory.sequences or (), index))


def _replayed(history: History, run: TrainedRun, replay: ReplayBook) -> Mapping[int, int]:
    """By version how many trajectories that may be trained on again carry it."""
    held = scored_at(history.log, history.codec, history.topics.scored, replay.places())
    return Counter(
        version
        for _, scored in held
        if scored.trajectory is not None
        for version in _carried(scored.trajectory, run.policy_id)
    )


def _buffered(history: History, run: TrainedRun, use: VersionUse) -> Mapping[int, int]:
    """By version how many trajectories of the run carry it that no step has consumed."""
    marks = {(m.topic, m.partition): m for m in use.newest.consumed} if use.newest else {}
    bounds = {topic: history.log.bounds(topic) for topic, _ in marks}
    starts = {
        (topic, number): min(max(mark.next_offset, low), end)
        for (topic, number), mark in marks.items()
        for low, end in (bounds[topic].get(number, (0, 0)),)
    }
    counts = Counter[int]()
    for record in read_all(history.log, [history.topics.scored], starts) if starts else ():
        mark = marks.get((record.topic, record.partition))
        if mark is None or record.offset < mark.next_offset or record.offset in mark.above:
            continue
        scored = decoded(history.codec, record, ScoredTrajectory)
        trajectory = scored.trajectory if scored else None
        request = trajectory.request if trajectory else None
        if trajectory is None or request is None or request.run_id != run.run_id:
            continue
        if request.purpose == "train":
            counts.update(_carried(trajectory, run.policy_id))
    return counts
