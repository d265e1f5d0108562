"""The curve of a run, from `train.steps` and the held-out part of `trajectories.scored` alone.

A resumed trainer may have taken steps again from an older checkpoint; the run consists of the
ancestors of the newest version, and the other steps are counted as abandoned.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from rollcall.consumers.heldout import MARK, HeldOut, HeldOutPlan, Measured
from rollcall.consumers.history.reading.history import History
from rollcall.consumers.history.reading.ranges import Range, extent_of
from rollcall.consumers.log.reading import read_all, read_between
from rollcall.schemas.errors import Refused, WireError
from rollcall.schemas.messages import RolloutRequest, ScoredTrajectory, Task, TrainStep
from rollcall.schemas.names import unknown_name
from rollcall.trainer.checkpoints.step_chain import StepChain
from rollcall.trainer.weights.branches import descent

SERIES: Mapping[str, str] = {
    "reward": "reward_mean",
    "length": "length_mean",
    "staleness": "staleness_mean",
    "entropy": "entropy",
    "loss": "loss",
    "gen_kl": "gen_kl",
}
"""The metric of a step that each displayed series shows."""
HELD_OUT = "held-out success"


@dataclass
class RunCurve:
    """One run: its steps in order, and the results of its held-out evaluations."""

    run_id: str
    steps: list[TrainStep]
    heldout: list[tuple[int, float | None]]
    """(version, success) of every complete evaluation; None if all of its rollouts failed."""
    at_ms: dict[int, int] = field(default_factory=dict)
    """The append time of each version's step, if it is known."""
    abandoned: int = 0
    others: dict[str, list[tuple[int, float | None]]] = field(default_factory=dict)
    """The same for the run's other policies, by name; versions are those
    of the admitting policy."""
    failed: list[Measured] = field(default_factory=list)
    """The evaluations in which rollouts failed."""

    @classmethod
    def of(
        cls,
        run_id: str,
        steps: Iterable[TrainStep],
        heldout: HeldOut | None,
        at_ms: Mapping[int, int] | None = None,
        others: Mapping[str, HeldOut] | None = None,
    ) -> "RunCurve":
        """Build the curve from all written steps, including those of abandoned branches."""
        by_version = {step.version: step for step in steps}
        own = list(descent(by_version))[::-1]
        abandoned = len(by_version) - len(own)
        measured = heldout.curve() if heldout else []
        failed = [each for each in heldout.measured() if each.failed] if heldout else []
        beside = {name: each.curve() for name, each in (others or {}).items()}
        return cls(run_id, own, measured, dict(at_ms or {}), abandoned, beside, failed)

    def series(self) -> dict[str, list[tuple[int, float]]]:
        """Return (step, value) of each series; held-out success at the step of its version."""
        at_step = {step.version: step.step for step in self.steps}
        series = {
            name: [(s.step, s.metrics[metric]) for s in self.steps if metric in s.metrics]
            for name, metric in SERIES.items()
        }
        first = self.steps[0].parent if self.steps else None
        for name, measured in self.held_out().items():
            series[name] = [
                (at_step.get(version, 0), success)
                for version, success in measured
                if success is not None
                and (version in at_step or not self.steps or version == first)
            ]
        return series

    def held_out(self) -> dict[str, list[tuple[int, float | None]]]:
        """Return (version, success) of each policy, by its displayed name."""
        beside = {f"{HELD_OUT}, {name}": measured for name, measured in self.others.items()}
        return {HELD_OUT: self.heldout} | beside

    def plain(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "steps": [
                {
                    "step": step.step,
                    "version": step.version,
                    "parent": step.parent,
                    "at_ms": self.at_ms.get(step.version),
                    "metrics": step.metrics,
                }
                for step in self.steps
            ],
            "held_out": _plain_held_out(self.heldout),
            "held_out_of_others": {
                name: _plain_held_out(measured) for name, measured in self.others.items()
            },
            "held_out_failed": [
                {"version": each.version, "failed": each.failed, "rollouts": each.rollouts}
                for each in self.failed
            ],
            "abandoned_steps": self.abandoned,
        }


def _plain_held_out(
    measured: Iterable[tuple[int, float | None]],
) -> list[dict[str, float | None]]:
    return [{"version": version, "success": success} for version, success in measured]


@dataclass(frozen=True, slots=True)
class HeldOutRule:
    """The evaluation of a run with a known recipe: its plan, and the
    scoring whose rewards count."""

    plan: HeldOutPlan
    scoring_id: str


def curve_of(
    history: History,
    run_id: str,
    rule: HeldOutRule | None,
    others: Mapping[str, HeldOutRule] | None = None,
) -> RunCurve:
    """Return the curve of a run, or of another of its policies by name; `others` are also held out.

    Raises Refused if there is no record of it.
    """
    steps = steps_of_runs(history)
    rules = dict(others or {}) | ({run_id: rule} if rule else {})
    known = held_out_of(history, {run_id, *rules}, rules)
    heldout = known.pop(run_id)
    if run_id not in steps and not heldout.results:
        if rule:
            msg = f"run {run_id!r} has no step and no held-out result in the log yet"
            raise Refused(msg)
        raise unknown_name("run", run_id, sorted(steps))
    written = steps.get(run_id, [])
    at_ms = {step.version: at for step, at in written}
    return RunCurve.of(run_id, [step for step, _ in written], heldout, at_ms, known)


def steps_of_runs(history: History) -> dict[str, list[tuple[TrainStep, int]]]:
    """Return every optimiser step by run, with its append time.

    Steps of the other policies of a run are under their own names, which begin with the run's.
    """
    steps: dict[str, list[tuple[TrainStep, int]]] = {}
    chains: dict[str, StepChain] = defaultdict(StepChain)
    for record in read_all(history.log, [history.topics.train_steps]):
        with suppress(WireError):
            step = history.codec.decode(record.value, TrainStep)
            other = step.policy_id.startswith(f"{step.run_id}-")
            name = step.policy_id if other else step.run_id
            if chains[name].take(step):
                steps.setdefault(name, []).append((step, record.timestamp_ms))
    return steps


def held_out_of(
    history: History, run_ids: Iterable[str], rules: Mapping[str, HeldOutRule]
) -> dict[str, HeldOut]:
    """Return the held-out results of some runs; only theirs are decoded, selected by key.

    A rollout counts for every policy in it: with a rule, a name may be that of any policy of a run.
    """
    results = {
        run_id: HeldOut(rules[run_id].plan if run_id in rules else _plan(run_id))
        for run_id in run_ids
    }
    of_run: dict[str, list[str]] = {}
    for name, heldout in results.items():
        of_run.setdefault(heldout.plan.template.run_id, []).append(name)
    keys = tuple(f"{run_id}{MARK}".encode() for run_id in of_run)
    if not keys:
        return results
    extent = extent_of(history.log, history.topics.scored, Range())
    for record in chain.from_iterable(read_between(history.log, *extent)):
        if (record.key or b"").startswith(keys):
            with suppress(WireError):
                scored = history.codec.decode(record.value, ScoredTrajectory)
                request = scored.trajectory.request
                if request is None:
                    continue
                for name in of_run.get(request.run_id, ()):
                    _take(results[name], rules.get(name), scored, request)
    return results


def _take(
    heldout: HeldOut, rule: HeldOutRule | None, scored: ScoredTrajectory, request: RolloutRequest
) -> None:
    """Note a result with the rule's scoring; without a rule, with any."""
    if rule is not None and rule.scoring_id != scored.scoring_id:
        return
    if rule is None and not heldout.plan.seeds[1]:
        heldout.plan = _plan(request.run_id, request.group_size)
    heldout.take(scored)


def _plan(run_id: str, seeds: int = 0) -> HeldOutPlan:
    """Return the evaluation plan of a run without its recipe: success is a reward of 1."""
    return HeldOutPlan(RolloutRequest("", Task(), run_id=run_id), (0, seeds), 0, 1.0, 2.0)
