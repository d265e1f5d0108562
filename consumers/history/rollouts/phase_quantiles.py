"""Durations of rollout phases: p50 and p95 of each phase, and of starts by mode."""

from dataclasses import dataclass, field, fields

import numpy as np

from rollcall.schemas.bounded import json_object
from rollcall.schemas.messages import RolloutTimers, Task, Trajectory

PHASES = tuple(each.name for each in fields(RolloutTimers))
QUANTILES = (0.5, 0.95)
Seconds = dict[str, float]
"""Seconds by `p50` and `p95`, and `count`, the number of rollouts with that phase."""


@dataclass(slots=True)
class PhaseTimes:
    """The phase durations of a range of trajectories; each is given once."""

    by_phase: dict[str, list[float]] = field(default_factory=dict)
    starts_by_mode: dict[str, list[float]] = field(default_factory=dict)
    """Environment starts, if the task states the mode of its box."""

    def take(self, trajectory: Trajectory) -> None:
        if trajectory.timers is None:
            return
        for name in PHASES:
            seconds = getattr(trajectory.timers, name)
            if seconds is not None:
                self.by_phase.setdefault(name, []).append(seconds)
        start_s = trajectory.timers.environment_start_s
        mode = mode_of(trajectory.request.task) if trajectory.request else ""
        if mode and start_s is not None:
            self.starts_by_mode.setdefault(mode, []).append(start_s)

    def quantiles(self) -> dict[str, Seconds]:
        """Return the quantiles of every phase with data, in the order of phases."""
        return {name: _quantiles(self.by_phase[name]) for name in PHASES if name in self.by_phase}

    def starts(self) -> dict[str, Seconds]:
        """Return the quantiles of environment starts, by mode."""
        return {mode: _quantiles(times) for mode, times in sorted(self.starts_by_mode.items())}


def mode_of(task: Task) -> str:
    """Return the mode of a task's box, `persistent` or `ephemeral`; empty if it is not stated."""
    config = json_object(task.environment_config or "{}")
    default = "persistent" if task.environment == "shell" else None
    mode = None if config is None else config.get("mode", default)
    return mode if mode in ("persistent", "ephemeral") else ""


def _quantiles(seconds: list[float]) -> Seconds:
    p50, p95 = (float(each) for each in np.quantile(seconds, QUANTILES))
    return {"p50": round(p50, 6), "p95": round(p95, 6), "count": len(seconds)}
