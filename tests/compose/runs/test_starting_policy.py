"""The initial policy of a run: a local directory, unchanged or with another template."""

import json
from pathlib import Path

import pytest

from rollcall.compose.runs import run_folder
from rollcall.compose.runs.recipe import load_recipe, parse_recipe
from rollcall.inference.policy_dir import load_policy
from rollcall.schemas.errors import Refused
from tests.support import policies
from tests.support.tiny_run import RECIPE as TINY

TEMPLATE = 'template = { kind = "words", bos = "<bos>", turn = "no" }'


def recipe_on(directory: str, template: str = "") -> str:
    """The lake's recipe, beginning with a directory."""
    text = load_recipe("lake-any-start")[1]
    head, rest = text.split("[policy]")
    return (
        f'{head}[policy]\ndirectory = "{directory}"\n{template}\n[learner]'
        + rest.split("[learner]")[1]
    )


def begun(tmp_path: Path, text: str) -> Path:
    return run_folder.create(tmp_path / "state", parse_recipe(text, "mine"), text, seed=1).policy


def test_policy_directory_is_linked_unchanged(tmp_path: Path) -> None:
    policies.lake(tmp_path / "mine")

    assert begun(tmp_path, recipe_on(f"{tmp_path}/mine")).resolve() == tmp_path / "mine"


def test_another_template_belongs_to_the_run_and_leaves_the_directory_unchanged(
    tmp_path: Path,
) -> None:
    policies.lake(tmp_path / "mine")
    before = (tmp_path / "mine" / "rollcall.json").read_bytes()

    at = begun(tmp_path, recipe_on(f"{tmp_path}/mine", TEMPLATE))

    assert json.loads((at / "rollcall.json").read_text())["template"]["turn"] == "no"
    assert load_policy(at).template.digest != load_policy(tmp_path / "mine").template.digest
    assert (at / "model.safetensors").resolve() == tmp_path / "mine" / "model.safetensors"
    assert (tmp_path / "mine" / "rollcall.json").read_bytes() == before


def test_directory_without_a_policy_is_refused_before_a_run_exists(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"'nowhere' holds no config\.json; .* policy fetch smollm2"):
        begun(tmp_path, recipe_on("nowhere"))

    assert not (tmp_path / "state").exists()


def test_missing_reference_model_is_refused_before_a_run_begins(tmp_path: Path) -> None:
    kl = 'kl = { name = "k2", directory = "nowhere" }'
    text = TINY.replace("[learner]", f"[learner]\n{kl}")

    with pytest.raises(Refused, match="no reference model at 'nowhere'"):
        run_folder.create(tmp_path, parse_recipe(text, "tiny"), text, seed=1)
