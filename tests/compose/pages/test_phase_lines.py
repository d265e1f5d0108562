"""How long starts took, by mode, where a run and an evaluation are summed up."""

import io
from dataclasses import replace
from typing import Any

from rich.console import Console

from rollcall.compose.cli.evaluate import print_evaluation
from rollcall.compose.conductor.run_summary import summary, summary_lines
from rollcall.compose.pages.phase_lines import phase_lines
from rollcall.consumers.heldout import HeldOut, HeldOutPlan
from rollcall.consumers.history.rollouts.phase_quantiles import PhaseTimes
from rollcall.consumers.history.runs.run_figures import RunFigures
from rollcall.schemas.messages import RolloutRequest, RolloutTimers, Task, Trajectory

STARTS = "starts   p50 / p95: ephemeral boxes 0.110 / 0.200 s, persistent boxes 0.002 / 0.003 s"
STARTS_S = {"persistent": (0.001, 0.002, 0.003), "ephemeral": (0.011, 0.11, 0.21)}


def trajectory(config: str, start_s: float) -> Trajectory:
    none: dict[str, Any] = {"policies": (), "sequences": (), "model_calls": 0, "sampled_tokens": 0}
    none |= {"failures": 0, "journal_partition": 0, "first_offset": 0, "last_offset": 0}
    none |= {"started_ms": 0, "ended_ms": 0}
    timers = RolloutTimers(0.25, 0.5, start_s, 2.0)
    request = RolloutRequest("r", Task("shell", config))
    return Trajectory("r", 1, "finished", request, steps=(), timers=timers, **none)


def phases() -> PhaseTimes:
    times = PhaseTimes()
    for mode, starts_s in STARTS_S.items():
        for start_s in starts_s:
            config = "{}" if mode == "persistent" else '{"mode": "ephemeral"}'
            times.take(trajectory(config, start_s))
    return times


def test_phases_and_starts_of_each_mode_have_a_line_each() -> None:
    lines = phase_lines(phases())

    assert [line.partition(":")[0] for line in lines] == [
        "phases   p50 / p95", "starts   p50 / p95",
    ]  # fmt: skip
    assert lines[1] == STARTS
    assert "environment start 0.007 / " in lines[0]
    assert phase_lines(PhaseTimes()) == []


def test_trajectories_without_timers_or_boxes_are_not_counted() -> None:
    times = PhaseTimes()
    times.take(replace(trajectory("{}", 1.0), timers=None))
    assert phase_lines(times) == []
    other = trajectory("{}", 1.0)
    assert other.request
    request = replace(other.request, task=Task("gymnasium", "{}"))
    times.take(replace(other, request=request))
    assert len(phase_lines(times)) == 1


def test_evaluation_prints_both_lines() -> None:
    told = io.StringIO()

    print_evaluation([], None, Console(file=told, width=200), phases=phases())

    assert told.getvalue().splitlines() == phase_lines(phases())


def test_run_summary_prints_both_lines() -> None:
    plan = HeldOutPlan(RolloutRequest("", Task()), (0, 4), 1, 1.0, 2.0)
    figures = RunFigures("run", "s", HeldOut(plan), phases=phases())
    told = summary(figures, {}, seed=1, wall_s=1.0)

    said = summary_lines(figures, {}, told).splitlines()

    assert [line for line in said if "p50" in line] == phase_lines(phases())
