"""A run that only fails is ended by name; a run that makes progress is not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console

from rollcall.compose.conductor.curve_files import print_chart, write_files
from rollcall.compose.conductor.in_memory import run_in_memory
from rollcall.compose.conductor.live_panel import line
from rollcall.compose.conductor.run_summary import summary, summary_lines
from rollcall.compose.conductor.run_watch import KeepsFailing, RunWatch, watch_of
from rollcall.compose.runs import run_folder
from rollcall.compose.runs.recipe import parse_recipe
from rollcall.compose.settings import Settings
from rollcall.consumers.heldout import HeldOut, HeldOutPlan
from rollcall.consumers.history.runs.run_curve import HELD_OUT, RunCurve
from rollcall.consumers.history.runs.run_figures import RunFigures
from rollcall.sandbox.environment import Observation
from rollcall.schemas.messages import RolloutRequest, ScoredTrajectory, Task
from tests.support.command_line import call, refused, rollcall
from tests.support.scored_trajectories import scored
from tests.support.tiny_run import RECIPE

PLAN = HeldOutPlan(RolloutRequest("", Task(), run_id="run"), (0, 4), 1, 1.0, 0.5)
OPENED: list[int] = []


class BreaksDown:
    """An environment that opens a few times, as in a trial, and never again."""

    replayable = True

    def open(self, seed: int) -> Observation:
        OPENED.append(seed)
        if len(OPENED) > 2:
            msg = "the database is away"
            raise OSError(msg)
        return Observation("s0")

    def step(self, action: str) -> Observation:
        return Observation("s1", 1.0, terminated=True)

    def close(self) -> None:
        pass


def figures_of(*records: ScoredTrajectory) -> RunFigures:
    figures = RunFigures("run", "s", HeldOut(PLAN))
    for number, record in enumerate(records):
        figures.take_scored(replace(record, scoring_id="s"), 1000 + number, 0.0)
    return figures


def failed(number: int) -> ScoredTrajectory:
    one = scored(f"r-{number}", None, status="failed")
    return replace(one, trajectory=replace(one.trajectory, code="bad_config", reason="why"))


def test_only_consecutive_failures_end_a_run() -> None:
    watch = RunWatch(steps=9, patience=3)
    ends: list[ScoredTrajectory] = [failed(0), failed(1), scored("good"), failed(2), failed(3)]

    watch.require_progress(figures_of(*ends))
    with pytest.raises(KeepsFailing, match=r"last 3 rollouts of run .* 5: bad_config .*e.g. r-0"):
        watch.require_progress(figures_of(*ends, failed(4)))


def test_failures_before_the_resume_do_not_end_a_run() -> None:
    figures = RunFigures("run", "s", HeldOut(PLAN), watched_from_ms=5000)
    for number in range(5):
        figures.take_scored(replace(failed(number), scoring_id="s"), 1000 + number, 0.0)

    RunWatch(steps=9, patience=3).require_progress(figures)
    assert figures.failures.count == 5


def test_status_line_and_summary_name_failures_and_missing_measurements() -> None:
    asked = list(PLAN.requests(0))
    ends = [
        replace(failed(number), trajectory=replace(failed(number).trajectory, request=request))
        for number, request in enumerate(asked)
    ]
    figures = figures_of(*ends)

    told: dict[str, Any] = orjson.loads(
        orjson.dumps(summary(figures, {}, seed=1, wall_s=2.0), option=orjson.OPT_NON_STR_KEYS)
    )
    assert told["success_after"] is None
    assert told["held_out_curve"] == [[0, None]]
    assert told["failures"]["bad_config"]["rollouts"] == 4
    said = summary_lines(figures, {}, told)
    assert "held-out success v0 not measured: 4 of 4 failed before" in said
    assert "failed 4: bad_config (100 %), e.g. r-0" in said
    assert "failed 4: bad_config (100 %)" in line(figures, 0.0, RunWatch(9, 9))


def test_failure_after_the_trial_stops_the_run_by_name(tmp_path: Path) -> None:
    OPENED.clear()
    config = RECIPE.index("[task.environment_config]"), RECIPE.index("[limits]")
    text = RECIPE[: config[0]] + RECIPE[config[1] :]
    recipe = tmp_path / "breaks.toml"
    recipe.write_text(text.replace('"gymnasium"', f'"{__name__}:BreaksDown"'))

    with pytest.raises(KeepsFailing, match=r"raised \(100 %\).*OSError: the database is away"):
        run_in_memory(str(recipe), Settings(), seed=1, summary=None)


def test_patience_exceeds_the_number_of_rollouts_that_can_fail_together(tmp_path: Path) -> None:
    folder = run_folder.create(tmp_path, parse_recipe(RECIPE, "tiny"), RECIPE, seed=1)

    rule = folder.rule()
    assert watch_of(folder).patience >= 2 * rule.grant(0, 0, 0) * rule.group_size + 6


def test_run_reports_its_current_activity_from_the_start() -> None:
    watch = RunWatch(9, 9, workers=("agents-1", "models-1"))
    nothing = figures_of()

    assert watch.doing(nothing) == "waiting for agents-1, models-1 to start"
    watch.ready.add("agents-1")
    assert watch.doing(nothing) == "waiting for models-1 to start"
    watch.ready.add("models-1")
    assert "no rollout has ended yet" in watch.doing(nothing)
    one = scored("run/heldout/0/0", 1.0)
    half = figures_of(
        replace(one, trajectory=replace(one.trajectory, request=next(iter(PLAN.requests(0)))))
    )
    assert watch.doing(half) == "evaluating v0, 1 of 4"
    watch.paused = True
    assert "paused" in watch.doing(half)


def test_required_goal_must_exist(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(RECIPE)

    said = refused(rollcall("run", "tiny.toml", "--require-goal", "--log=memory", cwd=tmp_path))

    assert "has no goal" in said


def test_missed_goal_has_its_own_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = RECIPE.replace("steps = 4", "steps = 1").replace("every = 2", "every = 2\ngoal = 1.0")
    (tmp_path / "tiny.toml").write_text(text)

    code = call(None, "run", "tiny.toml", "--require-goal", "--log=memory")

    said = capsys.readouterr().err
    assert code == 3, said
    assert "the goal of 1 held-out success was missed" in said


def test_missing_measurement_is_null_in_curves_and_empty_in_lines(
    tmp_path: Path,
) -> None:
    heldout = HeldOut(PLAN)
    for number, request in enumerate(PLAN.requests(0)):
        one = failed(number)
        heldout.take(replace(one, trajectory=replace(one.trajectory, request=request)))
    curve = RunCurve.of("run", [], heldout)

    told = curve.plain()
    assert told["held_out"] == [{"version": 0, "success": None}]
    assert told["held_out_failed"] == [{"version": 0, "failed": 4, "rollouts": 4}]
    assert curve.series()[HELD_OUT] == []
    write_files(curve, picture=tmp_path / "c.png", lines=tmp_path / "c.csv", tensorboard=None)
    shown = Console(width=100, record=True)
    print_chart(curve, shown)
    assert "held-out v0 not measured: 4 of 4 failed" in shown.export_text()
