"""Every loss at every lag runs the same recipe otherwise; results are reported unchanged."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from rollcall.compose.benchmarks.lag_runs import Cell, RunResults, Variant, recipe_digest
from rollcall.compose.benchmarks.learning_at_lag import (
    LOSSES,
    at_lag,
    draw,
    lags_of,
    learn_at_lag,
    losses_of,
    table,
    ways_of,
)
from rollcall.compose.benchmarks.learning_runs import ENDLESS, Evaluated, SeedRun
from rollcall.compose.runs.recipe import load_recipe, parse_recipe
from rollcall.compose.settings import load_settings
from rollcall.schemas.errors import Refused
from rollcall.trainer.config.learner_config import LearnerConfig
from tests.support.tiny_run import RECIPE

WAY = '{"loss": "no_loss", "step_size": "ess", "lag": 1}'
RUN = json.dumps(asdict(SeedRun(1, 0.9, (), 1, 2, 1.0)))


def kept_in(path: Path, text: str) -> RunResults:
    """The runs in a results file of a recipe in memory, under the current settings."""
    return RunResults.of(lambda way: recipe_digest(at_lag(text, way), load_settings(), True), path)


def run_of(success: float, staleness: float) -> SeedRun:
    return SeedRun(1, 0.9, (Evaluated(10, success, 100),), 1, 2, 1.0, staleness)


@pytest.mark.parametrize("way", ways_of((1, 16), LOSSES), ids=str)
def test_lagged_recipe_changes_only_the_compared_options(way: Variant) -> None:
    recipe, text = load_recipe("lake-any-start")

    again = parse_recipe(at_lag(text, way), "lagging")

    config = LearnerConfig.of(again.learner.given())
    assert (config.staleness.bound, config.step_size) == (way.lag, way.step_size)
    assert config.rules.loss.rule.name == way.loss
    assert config.groups.capacity >= config.groups.per_step * (way.lag + 1)
    assert again.evaluation.goal == ENDLESS
    changed = {"loss", "step_size", "max_staleness", "capacity_groups"}
    assert {k: v for k, v in again.learner.given().items() if k not in changed} == {
        k: v for k, v in recipe.learner.given().items() if k not in changed
    }


def test_cell_shows_the_median_and_the_number_of_good_runs() -> None:
    runs = tuple(run_of(*each) for each in ((0.9, 15.0), (0.2, 16.0), (0.86, 14.0)))
    cell = Cell(Variant("m2po", "ess", 16), runs)

    assert str(cell) == "0.86 (2/3, 15.0)"
    assert table([cell]).row_count == 1


def test_invalid_lag_lists_and_unknown_losses_are_refused() -> None:
    assert (lags_of("0,2"), losses_of("a, b")) == ((0, 2), ("a", "b"))
    for text in ("1,x", "-1", ","):
        with pytest.raises(Refused, match="is no list of versions"):
            lags_of(text)
    with pytest.raises(Refused, match="did you mean 'm2po'"):
        learn_at_lag("lake-any-start", [1], memory=True, losses="m2p")


@pytest.mark.thorough
def test_table_contains_real_runs_with_the_staleness_of_their_lag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, told, picture = (tmp_path / name for name in ("r.toml", "told.json", "told.png"))
    recipe.write_text(RECIPE.replace("steps = 4", "steps = 6"))

    cells = learn_at_lag(
        str(recipe), [1], memory=True, lags="0,3", losses="m2po", json=told, picture=picture
    )

    assert [str(cell.way) for cell in cells] == [
        "m2po-scheduled-0", "m2po-scheduled-3", "m2po-ess-0", "m2po-ess-3",
    ]  # fmt: skip
    assert all(run.evaluations[-1].step == 6 for cell in cells for run in cell.runs)
    assert [cell.staleness for cell in cells if cell.way.lag == 0] == [0, 0]
    assert all(0 < cell.staleness <= 3 for cell in cells if cell.way.lag == 3)
    assert len(json.loads(told.read_text())["cells"]) == 4
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "m2po" in capsys.readouterr().out


@pytest.mark.thorough
def test_only_runs_missing_from_the_results_file_are_run(tmp_path: Path) -> None:
    # Given a file with one of two runs, which has a success that no run comes to
    recipe, told = tmp_path / "r.toml", tmp_path / "told.json"
    recipe.write_text(RECIPE.replace("steps = 4", "steps = 2"))
    kept = kept_in(told, recipe.read_text())
    kept.add(Variant("m2po", "scheduled", 1), run_of(0.123, 1.0))

    cells = learn_at_lag(str(recipe), [1], memory=True, lags="1", losses="m2po", json=told)

    assert [cell.success == 0.123 for cell in cells] == [True, False]
    again = kept_in(told, recipe.read_text())
    assert [again.cell(cell.way) for cell in cells] == cells
    assert len(again.runs) == 2


@pytest.mark.parametrize("other", ["a learning rate", "a thread", "a broker", "one run alone"])
def test_results_file_of_a_different_setup_is_refused_by_the_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    # Given a file of two runs, of which one or both were made with another setup
    recipe, told = tmp_path / "r.toml", tmp_path / "told.json"
    recipe.write_text(RECIPE)
    kept = kept_in(told, RECIPE + ("# a comment decides nothing\n"))
    for loss in ("gspo", "m2po"):
        kept.add(Variant(loss, "ess", 1), run_of(0.5, 1.0))
    if other == "a learning rate":
        recipe.write_text(RECIPE.replace("[learner]", "[learner]\nlr = 1e-9"))
    elif other == "a thread":
        monkeypatch.setenv("ROLLCALL_TRAINING__THREADS", "7")
    elif other == "one run alone":
        values = json.loads(told.read_text())
        values["cells"][1]["runs"][0]["made_by"] = "0" * 32
        told.write_text(json.dumps(values))
    before = told.read_text()

    named = "m2po-ess-1, seed 1" if other == "one run alone" else "gspo-ess-1, seed 1"
    with pytest.raises(Refused, match=named):
        learn_at_lag(str(recipe), [1], memory=other != "a broker", lags="4", json=told)

    assert told.read_text() == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "holds no runs at lags"),
        ("[]", "holds no runs at lags"),
        ('{"cells": [{"way": {}}]}', "holds no runs at lags"),
        (f'{{"cells": [{{"way": {WAY}, "runs": [{RUN}]}}]}}', "holds no runs at lags"),
        (
            f'{{"cells": [{{"way": {WAY}, "runs": [{RUN[:-1]}, "made_by": 3}}]}}]}}',
            "of another recipe",
        ),
    ],
)
def test_foreign_results_file_is_refused_and_stays_unchanged(
    tmp_path: Path, text: str, said: str
) -> None:
    told = tmp_path / "told.json"
    told.write_text(text)

    with pytest.raises(Refused, match=said):
        learn_at_lag("lake-any-start", [1], memory=True, json=told)

    assert told.read_text() == text


def test_picture_names_every_variant_and_is_reproducible(tmp_path: Path) -> None:
    ways = ways_of([1, 16], ["gspo", "cispo"])
    cells = [Cell(way, (run_of(0.5, 1.0), run_of(0.75, 1.0))) for way in ways]
    pictures = [tmp_path / "once.svg", tmp_path / "again.svg"]

    for picture in pictures:
        draw("tiny", cells, picture)

    once, again = (picture.read_text() for picture in pictures)
    assert once == again
    assert {f"{way.loss}, {way.step_size}" for way in ways} <= set(re.findall(r">([^<]+)<", once))
