"""A run that can only fail is refused before anything is published."""

from pathlib import Path

import pytest

from rollcall.compose.conductor.preflight import preflight
from rollcall.compose.runs import run_folder
from rollcall.compose.runs.recipe import parse_recipe
from rollcall.compose.runs.run_folder import RunFolder
from rollcall.compose.settings import Settings
from rollcall.consumers.agents.effects import Agent, CallModel, Finish, ModelAnswer, Task, user
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import Trajectory
from tests.support.tiny_run import RECIPE

HERE = __name__
CLOSED: list[int] = []


def begins(task: Task) -> Agent:
    answer: ModelAnswer = yield CallModel([user(task.prompt or "?")])
    yield Finish(answer.text)


def breaks(task: Task) -> Agent:
    missing: dict[str, str] = {}
    yield Finish(missing["key"])


def wants_two(one: Trajectory, two: Trajectory) -> float:
    return float(one == two)


def folder_of(text: str, directory: Path) -> RunFolder:
    recipe = parse_recipe(text, "tiny")
    return run_folder.create(directory, recipe, text, seed=3, run_id="tiny-1")


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("agent", ["react", f"{HERE}:begins"])
def test_preflight_passes_for_tasks_that_start(agent: str, watched: bool, tmp_path: Path) -> None:
    text = RECIPE.replace("[task]\n", f'[task]\nagent = "{agent}"\nprompt = "go"\n')

    preflight(folder_of(text, tmp_path), Settings(state_dir=tmp_path), watched=watched)


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("FrozenLake-v1", "FrozenLake-v9", "bad_config: .*did you mean 'FrozenLake-v1'"),
        ("max_turns = 4\n[limits]", "max_turms = 4\n[limits]", "bad_config: .*max_turms"),
        (
            "[limits]",
            'kwargs = { desc = ["HF", "FG"] }\n[limits]',
            r"session of its task \(seed 0\) fails before a model is asked: ",
        ),
        ("[task]\n", f'[task]\nagent = "{HERE}:breaks"\n', r"KeyError: 'key' \(test_preflight.py:"),
        ('name = "tiny"', f'name = "tiny"\nscorers = ["{HERE}:wants_two"]', "cannot be called"),
        ('name = "tiny"', f'name = "tiny"\nscorers = ["{HERE}:nothing"]', "has no 'nothing'"),
    ],
)
def test_run_that_must_fail_is_refused_with_its_reason(
    old: str, new: str, said: str, watched: bool, tmp_path: Path
) -> None:
    folder = folder_of(RECIPE.replace(old, new, 1), tmp_path)

    with pytest.raises(Refused, match=said):
        preflight(folder, Settings(state_dir=tmp_path), watched=watched)


class OnlyTraining:
    """An environment that opens for seeds of the training alone."""

    replayable = True

    def open(self, seed: int) -> None:
        if seed >= 5000:
            msg = f"no map for {seed}"
            raise LookupError(msg)

    def step(self, action: str) -> None:
        raise NotImplementedError

    def close(self) -> None:
        CLOSED.append(1)


def test_held_out_seeds_are_tried_too(tmp_path: Path) -> None:
    task = RECIPE.index("[task.environment_config]"), RECIPE.index("[limits]")
    text = RECIPE[: task[0]] + RECIPE[task[1] :]
    text = text.replace('"gymnasium"', f'"{HERE}:OnlyTraining"')

    with pytest.raises(Refused, match=r"seed 5000|None"):
        preflight(folder_of(text, tmp_path), Settings(state_dir=tmp_path), watched=False)
