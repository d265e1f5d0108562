"""Results of many seeds are reported unchanged; the recipe continues after its goal."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from rollcall.compose.benchmarks.learning_runs import (
    ENDLESS,
    Evaluated,
    RunFailed,
    SeedRun,
    endless,
    learn,
    lines,
)
from rollcall.compose.runs.recipe import SHIPPED, load_recipe, parse_recipe
from rollcall.schemas.errors import Refused
from tests.support.tiny_run import RECIPE


def run_of(*successes: float, starts: int = 2) -> SeedRun:
    seen = tuple(Evaluated(10 * n, each, 100 * n) for n, each in enumerate(successes))
    return SeedRun(1, 0.9, seen, starts, 2, 1.0)


def test_summary_reports_first_good_evaluation_and_worst_one_after_it() -> None:
    lost = run_of(0.0, 0.95, 0.4, 0.92)
    never = run_of(0.0, 0.5)

    assert lost.reached == Evaluated(10, 0.95, 100)
    assert (lost.worst_after, lost.after) == (0.4, 0.92)
    assert (never.reached, never.worst_after) == (None, None)
    assert list(lines([lost, never, run_of(0.0, 1.0, starts=1)])) == [
        "2 of 3 seeds came to 0.9",
        "calls to it: median 100, most 100",
        "1 of 3 never fell below it afterwards",
        "2 of 3 solved every start after the last step",
    ]


@pytest.mark.parametrize("name", SHIPPED)
def test_endless_recipe_differs_only_in_its_evaluation_goal(name: str) -> None:
    recipe, text = load_recipe(name)

    again = parse_recipe(endless(text), name)

    assert again.evaluation.goal == ENDLESS
    same = {"evaluation": recipe.evaluation}
    assert again.model_copy(update=same) == recipe


def test_recipe_without_evaluation_gets_an_unreachable_goal() -> None:
    assert tomllib.loads(endless('name = "x"\n'))["evaluation"] == {"goal": ENDLESS}


@pytest.mark.thorough
def test_learning_runs_are_reported_as_json_and_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, told, picture = tmp_path / "r.toml", tmp_path / "told.json", tmp_path / "told.png"
    short = re.sub(r"(?m)^steps = .*$", "steps = 2", RECIPE)
    recipe.write_text(short)

    (run,) = learn(str(recipe), [3], memory=True, json=told, picture=picture)

    assert (run.seed, run.evaluations[0].step, run.evaluations[-1].step) == (3, 0, 2)
    assert run.evaluations[-1].calls > run.evaluations[0].calls > 0
    assert json.loads(told.read_text())[0]["starts"] == run.starts > 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "of 1 seeds came to" in capsys.readouterr().out


def test_unrunnable_recipe_is_refused_before_any_seed_starts(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="unknown recipe 'lake-any-strat'"):
        learn("lake-any-strat", [1], memory=True, json=None, picture=None)
    with pytest.raises(Refused, match="--picture"):
        learn("lake-any-start", [1], memory=True, json=None, picture=tmp_path / "no" / "x.png")


@pytest.mark.thorough
def test_failed_seed_is_named_with_its_last_output(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(RECIPE.replace("n_head = 2", "n_head = 3"))

    with pytest.raises(RunFailed, match=r"seed 1 of tiny.toml ended with exit code .*3"):
        learn(str(recipe), [1], memory=True, json=None, picture=None)
