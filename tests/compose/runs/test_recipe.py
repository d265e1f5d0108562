"""Recipes: invalid requests of a run are refused before anything is started."""

import json
from pathlib import Path

import pytest

from rollcall.compose.runs import run_folder
from rollcall.compose.runs.recipe import load_recipe, parse_recipe
from rollcall.schemas.errors import Refused
from rollcall.trainer.config.learner_table import LearnerTable
from tests.support.tiny_run import RECIPE
from tests.support.two_policies import RECIPE as PAIR


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
def test_recipe_must_respect_the_limits_of_every_request(
    good: str, bad: str, complaint: str
) -> None:
    text = RECIPE.replace(good, bad)

    with pytest.raises(Refused, match=r"recipe 'tiny'") as refused:
        parse_recipe(text, "tiny")

    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("s3://key:hidden@bucket/w", "credentials come from the surroundings"),
        ("s3://bucket/w?token=hidden", "credentials come from the surroundings"),
        ("nosuch://bucket/w", "cannot be opened here"),
        ("some/where", "give it from the root on"),
    ],
)
def test_invalid_weights_url_is_refused_without_showing_its_secret(
    tmp_path: Path, url: str, complaint: str
) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text(RECIPE.replace("[policy]\n", f'[policy]\nweights_url = "{url}"\n'))

    with pytest.raises(Refused, match=complaint) as refused:
        load_recipe(str(file))

    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("keep_bytes", ["-1", "1.5"])
def test_keep_bytes_must_be_a_number_of_bytes(keep_bytes: str) -> None:
    text = RECIPE.replace("[policy]\n", f"[policy]\nkeep_bytes = {keep_bytes}\n")
    with pytest.raises(Refused, match=r"policy\.keep_bytes"):
        parse_recipe(text, "tiny")


def test_too_small_keep_bytes_is_refused_at_the_start(
    tmp_path: Path,
) -> None:
    text = RECIPE.replace("[policy]\n", "[policy]\nkeep_bytes = 1000\n")
    with pytest.raises(Refused, match=r"policy\.keep_bytes is 1,000, but one full version takes"):
        run_folder.create(tmp_path, parse_recipe(text, "tiny"), text, seed=3)


def test_unknown_hosted_agent_in_a_recipe_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tiny.toml"
    table = 'agent = "hosted"\nagent_config = { agent = "smolagent" }\nseeds = ['
    file.write_text(RECIPE.replace("seeds = [", table, 1))

    with pytest.raises(Refused, match="unknown agent 'smolagent'; did you mean 'smolagents'"):
        load_recipe(str(file))


def test_unknown_box_in_a_recipe_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tiny.toml"
    known = 'environment = "gymnasium"', "[task.environment_config]"
    shell = 'environment = "shell"', '[task.environment_config]\nbox = "lokal"'
    text = RECIPE.replace(known[0], shell[0]).replace(known[1], shell[1])
    file.write_text(text)

    with pytest.raises(Refused, match="unknown box 'lokal'; did you mean 'local'"):
        load_recipe(str(file))


def test_each_of_several_policies_has_its_own_learner_and_scorers() -> None:
    recipe = parse_recipe(PAIR, "pair")

    verifier = recipe.of("verifier")
    assert (recipe.admitting(), recipe.others()) == ("solver", ("verifier",))
    assert (recipe.scorers, recipe.scoring_id) == (["environment_return"], "environment_return")
    assert verifier.scorers == ["tests.support.two_policies:agrees"]
    assert (verifier.learner.optimiser.lr, "lr" in recipe.learner.given()) == (2e-3, False)
    assert verifier.learner.groups.size == recipe.learner.groups.size == 2
    asked = json.loads(recipe.template("run", "run").agent_config)
    assert asked == {"policies": {"solver": "run", "verifier": "run-verifier"}}


def test_reward_share_becomes_the_weight_of_its_scorers() -> None:
    text = PAIR.replace("admits = true", 'admits = true\nshare = 0.5\nscorers = ["a:b", "c:d*-2"]')

    assert parse_recipe(text, "pair").scorers == ["a:b*0.5", "c:d*-1"]


@pytest.mark.parametrize(
    ("good", "bad", "complaint"),
    [
        ("[learner]\n", "[policy]\n[learner]\n", "give either [policy] or at least two"),
        ("scorers = [", "admits = true\nscorers = [", "policies verifier, solver admit"),
        ("admits = true", "admit = true", "'policies.solver.admits'"),
        ("[policies.solver]\n", "[policies.Solver]\n", "policies.Solver"),
        ("admits = true", "admits = true\nlearner = { group_size = 4 }", "groups of 2"),
    ],
)
def test_inconsistent_policies_are_refused(
    tmp_path: Path, good: str, bad: str, complaint: str
) -> None:
    text = PAIR.replace(good, bad, 1)

    with pytest.raises(Refused) as refused:
        run_folder.create(tmp_path, parse_recipe(text, "pair"), text, seed=1)

    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ("[learner]\nlr = 0", r"recipe 'tiny': \[learner\] lr is 0; give a number above 0"),
        ("[learner]\nlrr = 1", r"recipe 'tiny': \[learner\] unknown key .* did you mean 'lr'"),
        ("[learner.replay]\nratio = 1\n[learner]", "replay.ratio is 1; give a share in"),
        ("[policy.lora]\nrnk = 1\n[learner]", "'policy.lora.rnk'; did you mean"),
    ],
)
def test_refused_key_of_the_learner_is_named_with_the_recipe(table: str, complaint: str) -> None:
    with pytest.raises(Refused, match=complaint):
        parse_recipe(RECIPE.replace("[learner]", table), "tiny")


def test_recipe_without_a_policy_is_refused() -> None:
    with pytest.raises(Refused, match=r"policy is missing; give \[policy\]"):
        parse_recipe(RECIPE.partition("[policy]")[0], "tiny")


def test_folder_of_another_policy_is_found_by_its_name(tmp_path: Path) -> None:
    folder = run_folder.create(tmp_path, parse_recipe(PAIR, "pair"), PAIR, seed=1, run_id="r")
    body = {"run_id": "r", "policy_id": "r", "seed": 1, "starts": []}
    (folder.directory / run_folder.RUN_FILE).write_text(json.dumps(body))

    [other] = folder.others()
    assert (other.policy_id, other.admitting_id, other.root) == ("r-verifier", "r", folder.root)
    assert run_folder.find(tmp_path, "r-verifier") == run_folder.load(other.directory) == other
    assert [each.name for each in run_folder.all_of(tmp_path)] == ["r", "r-verifier"]
    assert (other.policy / "config.json").is_file()
    with pytest.raises(Refused, match="did you mean 'r-verifier'"):
        run_folder.find(tmp_path, "r-verifie")


def test_advantage_that_compares_scorers_requires_two_scorers(
    tmp_path: Path,
) -> None:
    recipe, text = load_recipe("lake-any-start")
    learner = LearnerTable(**recipe.learner.given() | {"advantage": "gdpo"})
    alone = recipe.model_copy(update={"learner": learner})

    with pytest.raises(Refused, match="'gdpo' compares scorers, and the recipe has only"):
        run_folder.create(tmp_path, alone, text, 1)

    assert not list(tmp_path.iterdir())
    two = alone.model_copy(update={"scorers": ["environment_return", "final_step"]})
    assert run_folder.create(tmp_path, two, text, 1).learner().advantage == "gdpo"
