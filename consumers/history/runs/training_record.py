"""The training data of a run, read back from the log: its steps, and trajectories by position."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rollcall.consumers.history.reading.history import History
from rollcall.consumers.log.protocols import Log, Record, TopicPartition
from rollcall.consumers.log.reading import read_all
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import Refused, TopicRecreated
from rollcall.schemas.messages import PolicyVersion, ScoredTrajectory, TrainStep, TrajectoryRef
from rollcall.schemas.trajectory_refs import refs_of
from rollcall.trainer.checkpoints.step_chain import StepChain
from rollcall.trainer.config.curation import Curation
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.curation.borrowed_samples import Reencode, judge_any
from rollcall.trainer.rules.samples import Sample
from rollcall.trainer.weights.publication import Publishing

CHANGED = "put [learner] and seed of the run's recipe back as they were when it was trained"
RecordPlace = tuple[str, int, int]
"""Topic, partition, offset."""


@dataclass(frozen=True, slots=True)
class TrainedRun:
    """A run that has been trained: its policy, its configuration, and the places of its files."""

    run_id: str
    policy_id: str
    config: LearnerConfig
    directory: Path
    """The directory of its checkpoints, and of weights that are not published to a URL."""
    policy: Path
    """The policy that it began with."""
    publishing: Publishing = field(default_factory=Publishing)
    """The form in which its weights were published, to which announced digests refer."""

    @property
    def weights(self) -> str:
        """The directory or URL to which its weights were published."""
        return self.publishing.place(self.directory)

    def reencoder(self) -> Reencode | None:
        """Return the function that tokenises text of other policies; None if none is shared.

        Raises Refused.
        """
        if self.config.share is None:
            return None
        from rollcall.inference.reencoding import Reencoder

        return Reencoder(self.policy, self.policy_id, self.config.temperature)


def steps_of(history: History, run: TrainedRun) -> Iterator[TrainStep]:
    """Yield the run's steps in log order, including those of abandoned branches.

    Steps of a concurrent second trainer, which do not count, are left out.
    """
    chain = StepChain()
    for record in read_all(history.log, [history.topics.train_steps]):
        if record.key == run.policy_id.encode():
            step = history.codec.decode(record.value, TrainStep)
            if step.run_id == run.run_id and chain.take(step):
                yield step


def digests_of(history: History, run: TrainedRun, versions: set[int]) -> Iterator[tuple[int, str]]:
    """Yield the announced digests of these versions; `policy.versions` forgets older ones."""
    for record in read_all(history.log, [history.topics.versions]):
        if record.key == run.policy_id.encode() and record.value is not None:
            version = history.codec.decode(record.value, PolicyVersion)
            if version.version in versions:
                yield version.version, version.weights_digest


def fetch(log: Log, steps: Sequence[TrainStep]) -> dict[RecordPlace, Record]:
    """Return the record at each position that the steps name; raises
    Refused if retention took some."""
    refs = [ref for step in steps for ref in refs_of(step)]
    topics = sorted({ref.topic for ref in refs})
    starts: dict[TopicPartition, int] = {}
    for topic in topics:
        bounds = log.bounds(topic)
        _refuse_gone(topic, bounds, steps)
        # Partitions without wanted records are not read.
        starts |= {(topic, number): end for number, (_, end) in bounds.items()}
    for ref in refs:
        at = ref.topic, ref.partition
        starts[at] = min(ref.offset, starts.get(at, ref.offset))
    wanted = {_place(ref) for ref in refs}
    records: dict[RecordPlace, Record] = {}
    for record in read_all(log, topics, starts):
        place = record.topic, record.partition, record.offset
        if place in wanted:
            records[place] = record
            if len(records) == len(wanted):
                break
    if len(records) < len(wanted):
        raise _made_anew(min(wanted - records.keys()))
    return records


def _refuse_gone(
    topic: str, bounds: dict[int, tuple[int, int]], steps: Sequence[TrainStep]
) -> None:
    """Raise Refused with the trajectories beyond retention, and the steps that are complete."""
    gone: dict[int, list[TrajectoryRef]] = {}
    for step in steps:
        for ref in refs_of(step):
            if ref.topic == topic and ref.offset < bounds.get(ref.partition, (0, 0))[0]:
                gone.setdefault(step.step, []).append(ref)
    if not gone:
        return
    number, refs = next(iter(gone.items()))
    whole = [step.step for step in steps if step.step > max(gone)]
    still = f"steps {whole[0]}..{whole[-1]} are whole" if whole else "no step of these is whole"
    some = ", ".join(f"{ref.partition}:{ref.offset}" for ref in refs[:3])
    more = f" and {len(refs) - 3} more" if len(refs) > 3 else ""
    lows = ", ".join(f"{p} from {bounds[p][0]}" for p in sorted({ref.partition for ref in refs}))
    msg = (
        f"step {number} was made of trajectories that retention has taken: {topic} {some}{more}; "
        f"still there are partitions {lows}; {still}"
    )
    raise Refused(msg)


def _place(ref: TrajectoryRef) -> RecordPlace:
    return ref.topic, ref.partition, ref.offset


def _made_anew(place: RecordPlace) -> TopicRecreated:
    topic, partition, offset = place
    return TopicRecreated(
        f"{topic} {partition}:{offset} is not what the step's record names; was the topic deleted "
        "and made anew? then what it was trained on is gone"
    )


def samples_of(
    step: TrainStep,
    records: Mapping[RecordPlace, Record],
    codec: Codec,
    curation: Curation,
    reencode: Reencode | None = None,
) -> tuple[Sample, ...]:
    """Return the step's samples in the order of its record, judged by the original rules.

    `reencode` tokenises shared text of others, if any.

    Raises TopicRecreated, and Refused if the present recipe would not train on them.
    """
    samples = []
    for ref in refs_of(step):
        scored = codec.decode(records[_place(ref)].value, ScoredTrajectory)
        if (scored.trajectory.rollout_id, scored.trajectory.attempt) != (
            ref.rollout_id,
            ref.attempt,
        ):
            raise _made_anew(_place(ref))
        member = judge_any(scored, ref.partition, ref.offset, curation, reencode)
        if member.sample is None:
            msg = (
                f"step {step.step} was trained on rollout {ref.rollout_id!r}, which the recipe of "
                f"now would not train on: {member.reason}; {CHANGED}"
            )
            raise Refused(msg)
        samples.append(member.sample)
    return tuple(samples)
