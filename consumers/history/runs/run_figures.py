"""The figures shown while a run goes on: a fold of its records; no worker is asked."""

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean

from rollcall.consumers.heldout import HeldOut
from rollcall.consumers.history.reading.history import History
from rollcall.consumers.history.rollouts.failures import Failures
from rollcall.consumers.history.rollouts.phase_quantiles import PhaseTimes
from rollcall.consumers.history.runs.untrained import Untrained
from rollcall.consumers.loop.decode_in_order import decoded
from rollcall.schemas.messages import ScoredTrajectory, TrainStep
from rollcall.trainer.checkpoints.step_chain import StepChain
from rollcall.trainer.curation.left_out import LeftOut

WINDOW_S = 10.0


@dataclass
class Rate:
    """Events per second over the last seconds."""

    seen: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, now: float, count: int) -> None:
        """Add `count` events at time `now`, in seconds of any clock."""
        self.seen.append((now, count))
        while self.seen and self.seen[0][0] < now - WINDOW_S:
            self.seen.popleft()

    def per_s(self, now: float) -> float:
        """Return the events per second over the last seconds."""
        if not self.seen:
            return 0.0
        span = max(1.0, now - self.seen[0][0])
        return sum(count for _, count in self.seen) / span


@dataclass
class RunFigures:
    """The state of one run according to its records."""

    run_id: str
    scoring_id: str
    heldout: HeldOut
    policy_id: str = ""
    """The policy whose steps these are, in a run with several; empty for any."""
    rollouts: int = 0
    model_calls: int = 0
    failures: Failures = field(default_factory=Failures)
    rollouts_rate: Rate = field(default_factory=Rate)
    calls_rate: Rate = field(default_factory=Rate)
    steps: list[TrainStep] = field(default_factory=list)
    training_began_ms: int | None = None
    """The append time of the first training rollout's start."""
    goal_version: int | None = None
    goal_ms: int | None = None
    """The append time at which the goal's held-out result was complete."""
    last_ms: int | None = None
    """The append time of the newest record that counts."""
    watched_from_ms: int = 0
    """Failures in earlier records are counted, but do not stop the run: they precede
    its resumption."""
    failing: int = 0
    """The number of failed rollouts since one finished, or can be trained on."""
    untrained: Untrained | None = None
    """Rollouts that ended since the last step; None if the trainer's curation is not known."""
    calls_at_goal: int | None = None
    calls_at: dict[int, int] = field(default_factory=dict)
    """By version the run's model calls when its held-out evaluation was complete."""
    last_rollout_id: str = ""
    phases: PhaseTimes = field(default_factory=PhaseTimes)
    chains: dict[str, StepChain] = field(default_factory=lambda: defaultdict(StepChain))
    """Step chains by policy."""
    left_out: LeftOut = field(default_factory=LeftOut)
    """Trajectories that the run's steps left out, or used only in part."""
    _known: set[tuple[str, int]] = field(default_factory=set)

    def take_scored(self, scored: ScoredTrajectory, appended_ms: int, now: float) -> None:
        """Count one trajectory, its first record only."""
        trajectory = scored.trajectory
        request = trajectory.request
        key = trajectory.rollout_id, trajectory.attempt
        if request is None or request.run_id != self.run_id or key in self._known:
            return
        if scored.scoring_id != self.scoring_id:
            return
        self._known.add(key)
        self.rollouts += 1
        self.model_calls += trajectory.model_calls
        failed = self.failures.take(scored)
        self.last_ms = max(self.last_ms or 0, appended_ms)
        if appended_ms >= self.watched_from_ms and trajectory.status != "cancelled":
            trained = self.untrained is not None and self.untrained.take(scored)
            self.failing = self.failing + 1 if failed and not trained else 0
        self.phases.take(trajectory)
        self.rollouts_rate.add(now, 1)
        self.calls_rate.add(now, trajectory.model_calls)
        self.last_rollout_id = trajectory.rollout_id
        if request.purpose == "train":
            began_ms = self.training_began_ms or trajectory.started_ms
            self.training_began_ms = min(began_ms, trajectory.started_ms)
        version = self.heldout.take(scored)
        if version is None or not self.heldout.complete(version):
            return
        self.calls_at.setdefault(version, self.model_calls)
        if self.goal_version is None and self.heldout.reached_by(version):
            self.goal_version, self.goal_ms = version, appended_ms
            self.calls_at_goal = self.model_calls

    def take_step(self, step: TrainStep) -> None:
        """Note one optimiser step; a step written twice is counted once."""
        ours = step.run_id == self.run_id and self.policy_id in ("", step.policy_id)
        if (
            ours
            and self.chains[step.policy_id].take(step)
            and step.version not in {s.version for s in self.steps[-8:]}
        ):
            self.steps.append(step)
            self.left_out.take(step)
            if self.untrained is not None:
                self.untrained.stepped()

    def held_out(self) -> list[tuple[int, float | None, int]]:
        """Return step, success, and the run's model calls so far of every held-out evaluation."""
        step_of = {step.version: step.step for step in self.steps}
        curve = self.heldout.curve()
        return [(step_of.get(v, 0), success, self.calls_at.get(v, 0)) for v, success in curve]

    def goal(self) -> float | None:
        """Return the held-out success at which the run may end; None if it has no such goal."""
        goal = self.heldout.plan.goal
        return goal if goal <= 1 else None

    def train_seconds(self) -> float | None:
        """Return seconds from the first training rollout's start to the goal, or else to the newest
        record.

        Append times are used, so a pause in between counts. None before the first step.
        """
        end_ms = self.goal_ms or self.last_ms
        if self.training_began_ms is None or end_ms is None or not self.steps:
            return None
        return (end_ms - self.training_began_ms) / 1000

    def metric(self, name: str) -> list[float]:
        """Return the values of one metric over all steps."""
        return [step.metrics[name] for step in self.steps if name in step.metrics]

    def mean(self, name: str) -> float:
        """Return the mean of a metric over all steps; 0 if there are none."""
        return fmean(self.metric(name) or [0.0])

    def dropped(self) -> dict[str, int]:
        """Return the trajectories that were not trained on, by reason."""
        total: dict[str, int] = {}
        for step in self.steps:
            for reason, count in step.dropped.items():
                total[reason] = total.get(reason, 0) + count
        return total


class RunReader:
    """Reads a run's records as they arrive."""

    def __init__(
        self,
        history: History,
        figures: RunFigures,
        starts: dict[tuple[str, int], int],
        others: Iterable[RunFigures] = (),
    ) -> None:
        """`others` are the figures of its other policies."""
        self.codec, self.topics = history.codec, history.topics
        self.figures = (figures, *others)
        scored = {tp: at for tp, at in starts.items() if tp[0] == self.topics.scored}
        self.reader = history.log.reader([self.topics.scored, self.topics.train_steps], scored)

    def poll(self, now: float, timeout_s: float = 0.1) -> int:
        """Take in new records; return their number."""
        records = self.reader.poll(timeout_s)
        for record in records:
            if record.topic == self.topics.train_steps:
                step = decoded(self.codec, record, TrainStep)
                for figures in self.figures:
                    if step is not None:
                        figures.take_step(step)
            elif (scored := decoded(self.codec, record, ScoredTrajectory)) is not None:
                for figures in self.figures:
                    figures.take_scored(scored, record.timestamp_ms, now)
        return len(records)
