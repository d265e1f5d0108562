"""Recipes: what a run would ask for is refused before anything is started."""

from pathlib import Path

import pytest

from compose.runs.recipe import load_recipe, parse_recipe
from schemas.errors import Refused
from tests.support.tiny_run import RECIPE


@pytest.mark.parametrize(
    ("good", "bad", "complaint"),
    [
        ("max_turns = 4\n[s", "call_timeout_s = inf\n[s", "limits.call_timeout_s must be from"),
        ("max_turns = 4\n[s", "rollout_timeout_s = 1e300\n[s", "limits.rollout_timeout_s must"),
        ("max_turns = 4\n[s", "step_timeout_s = nan\n[s", "limits.step_timeout_s must be from"),
        ("max_turns = 4\n[s", "max_tries = 0\n[s", "limits.max_tries must be from 1 to"),
        ("max_tokens = 1", "temperature = inf", "sampling.temperature must be from 0 to"),
        ("max_tokens = 1", "max_tokens = 0", "sampling.max_tokens must be from 1 to"),
        ("[5000, 5006]", "[5000, 9223372036854775808]", "task.seed must be from"),
    ],
)
def test_a_recipe_is_held_to_the_bounds_of_every_request(
    good: str, bad: str, complaint: str
) -> None:
    text = RECIPE.replace(good, bad)

    with pytest.raises(Refused, match=r"recipe 'tiny'") as refused:
        parse_recipe(text, "tiny")

    assert complaint in str(refused.value)


def test_a_recipe_names_an_agent_that_can_be_hosted(tmp_path: Path) -> None:
    file = tmp_path / "tiny.toml"
    table = 'agent = "hosted"\nagent_config = { agent = "smolagent" }\nseeds = ['
    file.write_text(RECIPE.replace("seeds = [", table, 1))

    with pytest.raises(Refused, match="unknown agent 'smolagent'; did you mean 'smolagents'"):
        load_recipe(str(file))


def test_a_recipe_names_a_box_that_can_be_had(tmp_path: Path) -> None:
    file = tmp_path / "tiny.toml"
    known = 'environment = "gymnasium"', "[task.environment_config]"
    shell = 'environment = "shell"', '[task.environment_config]\nbox = "lokal"'
    text = RECIPE.replace(known[0], shell[0]).replace(known[1], shell[1])
    file.write_text(text)

    with pytest.raises(Refused, match="unknown box 'lokal'; did you mean 'local'"):
        load_recipe(str(file))
