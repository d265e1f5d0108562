"""Benchmarks of boxes: skipped parts when something is missing, and their building blocks."""

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest

from rollcall.compose.benchmarks import (
    bare_boxes,
    box_commands,
    box_starts,
    box_turns,
    suite,
)
from rollcall.compose.benchmarks.box_starts import box_sessions
from rollcall.compose.benchmarks.figure import BenchmarkUnavailable, Figure
from rollcall.compose.benchmarks.requirements import require_driver
from rollcall.compose.settings import Settings
from rollcall.consumers.agents.programs import program_of
from rollcall.sandbox.boxes.box import driver
from rollcall.sandbox.environment import kind_of
from rollcall.schemas.errors import WorkFailed
from tests.support.engines import has
from tests.support.model_calls import call_of


@pytest.fixture
def no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.socket")
    return Settings(state_dir=tmp_path)


def test_docker_benchmark_is_reported_as_skipped_without_an_engine(
    no_engine: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    measured = {
        "up_warm_s": lambda settings: Figure(5.0, "s", 2.5),
        "box_warm_ms_docker": suite.BENCHMARKS["box_warm_ms_docker"],
    }
    monkeypatch.setattr(suite, "BENCHMARKS", measured)

    suite.run_benchmarks([], no_engine, tmp_path / "figures.json")

    assert "box_warm_ms_docker  left out: driver 'docker' opens no box" in capsys.readouterr().out
    assert list(json.loads((tmp_path / "figures.json").read_text())) == ["up_warm_s"]


@pytest.mark.parametrize("figure", ["box_warm_ms", "box_cold_ms", "shell_action_ms"])
def test_docker_benchmark_requested_by_name_is_refused_without_an_engine(
    no_engine: Settings, figure: str
) -> None:
    with pytest.raises(BenchmarkUnavailable, match="the docker engine at"):
        suite.run_benchmarks([f"{figure}_docker"], no_engine, None)


def test_grading_benchmark_names_tasks_that_are_not_built(tmp_path: Path) -> None:
    if not has("bwrap"):
        with pytest.raises(BenchmarkUnavailable, match="bubblewrap is not installed"):
            box_commands.grade_s(Settings(state_dir=tmp_path))
        return
    with pytest.raises(
        BenchmarkUnavailable, match=r"0 of 5 tasks are in .*; `rollcall tasks build suite-b`"
    ):
        box_commands.grade_s(Settings(state_dir=tmp_path))


def test_warm_and_cold_box_starts_are_measured_and_leave_no_boxes() -> None:
    with (
        box_sessions(driver("local"), box="local") as warm,
        box_sessions(driver("local"), box="local", mode="ephemeral") as cold,
    ):
        for sessions, ahead in ((warm, 1), (cold, 0)):
            for _ in range(2):
                assert 0 < box_starts.start_ms(sessions, ahead) < 20_000
            with pytest.raises(WorkFailed, match="nothing is open"):
                sessions.ask("r", "close")

    assert warm.became["lent"] == cold.became["ready"] == cold.became["removed"] == 2
    assert warm.became["removed"] == warm.became["ready"] == 3, "another one waited started"
    assert cold.cpu_ms > 0


def test_box_start_is_measurable_without_any_started_process() -> None:
    with box_sessions(box_starts.NoDriver(), box="local") as empty:
        box_starts.start_ms(empty, 1)
        assert empty.became["ready"] == 2


def test_box_actions_are_measured_against_a_bare_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_commands, "ROUNDS", 1)
    monkeypatch.setattr(box_commands, "ACTIONS", 5)

    took, best = asyncio.run(box_commands.actions("local"))

    assert len(took) == len(best) == 5
    assert min(took + best) > 0


@pytest.mark.skipif(not has("bwrap"), reason="left out for want of bubblewrap: its bare figures")
def test_bare_bubblewrap_makes_the_same_box_as_the_driver() -> None:
    require_driver("bubblewrap")

    assert 0 < bare_boxes.held_namespaces_ms() < 60_000
    assert bare_boxes.spawns_per_s(4, 2) > 0


def test_boxed_and_instant_rollouts_play_the_same_number_of_turns() -> None:
    says = box_turns.script()
    assert {says(call_of("r", seed)).text for seed in range(5)} == {"true"}
    for crew in (box_turns.IN_BOXES, box_turns.AT_ONCE):
        request = box_turns.request(crew, 7)
        assert program_of(request.agent).__name__ == "react"
        assert request.limits.max_turns == box_turns.TURNS
        assert request.rollout_id.startswith(crew.prefix)
        kind_of(request.task.environment)
    at_once = partial(json.loads, box_turns.AT_ONCE.task.environment_config)
    assert at_once() == {"turns": box_turns.TURNS}
