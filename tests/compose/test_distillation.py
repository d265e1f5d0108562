"""A student that learns from a teacher's token scores alone, on the in-memory log."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rollcall.compose.runs import run_folder
from rollcall.compose.runs.recipe import load_recipe, parse_recipe
from rollcall.inference.policy_dir import make_policy
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import ScoredTrajectory
from tests.support.policies import GPT2, WORDS, lake, writer
from tests.support.tiny_run import RECIPE, World

DISTILLED = (
    RECIPE.replace("[learner]", '[learner]\ndistill = "reverse_kl"\nentropy = 0.0\nlr = 5e-2')
    .replace("steps = 4", "steps = 12")
    .replace("every = 2", "every = 12")
)


def distilled(*scorers: str) -> str:
    return f"scorers = {list(scorers)!r}\n{DISTILLED}"


def sharpen(policy: Path) -> None:
    """Scale up the random weights, so that their predictions differ enough to measure a gap."""
    model = AutoModelForCausalLM.from_pretrained(policy)
    with torch.no_grad():
        model.transformer.ln_f.weight.mul_(30)
    model.save_pretrained(policy)


def test_student_approaches_its_teacher_in_a_few_steps(tmp_path: Path) -> None:
    teacher = make_policy(
        tmp_path / "teacher",
        config=GPT2
        | {"vocab_size": 32, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32},
        tokens="lake",
        template=WORDS,
        seed=99,
    )
    sharpen(teacher)
    world = World(tmp_path, distilled(f"teacher:{teacher}"))

    world.train(world.trainer())

    gaps = [step.metrics["teacher_gap"] for step in world.steps()]
    world.close()
    assert len(gaps) == 12
    assert gaps[0] > 0.1
    assert gaps[-1] < 0.9 * gaps[0]
    scores = world.read(world.topics.scored, ScoredTrajectory)
    assert {each.total for each in scores} == {0.0}
    assert all(each.token_scores for each in scores)


def test_teacher_with_another_vocabulary_is_refused_before_anything_runs(tmp_path: Path) -> None:
    text = distilled("environment_return", f"teacher:{writer(tmp_path / 'writer')}")

    with pytest.raises(Refused, match="another vocabulary"):
        run_folder.create(tmp_path, parse_recipe(text, "tiny"), text, seed=1)


def test_distilling_learner_requires_its_teacher_among_the_scorers(tmp_path: Path) -> None:
    text = distilled("environment_return")

    with pytest.raises(Refused, match="distils from 'teacher:'"):
        run_folder.create(tmp_path, parse_recipe(text, "tiny"), text, seed=1)


def test_recipe_with_a_missing_teacher_is_refused_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(distilled(f"teacher:{lake(tmp_path / 'p')}s"))

    with pytest.raises(Refused, match="no policy at"):
        load_recipe(str(tmp_path / "tiny.toml"))
