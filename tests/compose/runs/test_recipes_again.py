"""Steps of every shipped recipe are trained again from the record, bit for bit."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rollcall.compose.runs.recipe import SHIPPED, load_recipe
from rollcall.compose.runs.retraining import retrain_and_tell
from rollcall.inference.gguf_policy import make_gguf_policy
from rollcall.schemas.messages import Trajectory
from rollcall.schemas.objects import ObjectStore
from tests.support import tiny_gguf
from tests.support.engines import has, left_out
from tests.support.tiers import cases
from tests.support.waiting import until
from tests.support.whole_run import WholeRun

STEPS = 2
QUICKLY = {"lake-any-start", "solver-verifier", "smol-sums"}
"""One policy, several of them, and a language model."""


class Whole(WholeRun):
    """A run of a shipped recipe, played to its end."""

    def __init__(self, state: Path, text: str, name: str) -> None:
        super().__init__(state, text, name, seed=5, objects=ObjectStore(f"{state}/objects"))

    def go(self) -> None:
        """Play the run to its end."""
        trainers = [self.trainer(part) for part in self.parts]

        def over() -> bool:
            while self.turn(*trainers):
                pass
            return all(trainer.done() for trainer in trainers)

        until(over, 240, lambda: f"{[each.running() for each in trainers]} rollouts run")


def odd(trajectory: Trajectory) -> float:
    """A reward for a model of random weights, which is never right."""
    return float(sum(trajectory.result.encode()) % 2)


def shortened(name: str, directory: Path) -> str:
    """A shipped recipe of two steps; where it wants a fetched model, of one that is made here."""
    text = load_recipe(name)[1]
    text = re.sub(r"(?m)^steps = \d+", f"steps = {STEPS}", text)
    text = re.sub(r"(?m)^groups_per_step = (32|64)", "groups_per_step = 16", text)
    heading, _, rest = text.partition("[evaluation]")
    first = re.search(r"seeds = \[([\d_]+),", rest)
    assert first
    rest = re.sub(r"seeds = .*", f"seeds = [{first[1]}, {int(first[1]) + 2}]", rest, count=1)
    text = f"{heading}[evaluation]{re.sub('(?m)^goal = .*', '', rest)}"
    if 'directory = "smollm2"' in text:
        text = text.replace('directory = "smollm2"', f"directory = '{stand_in(directory)}'")
        text = text.replace("tokens = [216, 731]", "tokens = [2, 3]")  # of fewer
        text = text.replace('"environment_return"', f'"{__name__}:odd"')
    if name == "repairs":  # a box for each rollout, and another where it is judged
        for key, value in {"groups_per_step": 2, "group_size": 2, "max_staleness": 0}.items():
            text = re.sub(f"(?m)^{key} = .*", f"{key} = {value}", text)
    return text


def stand_in(directory: Path) -> Path:
    """A language model of the fetched one's kind, of a few thousand numbers."""
    tiny_gguf.write(directory / "tiny.gguf")
    made = directory / "tiny"
    make_gguf_policy(directory / "tiny.gguf", made, template={"kind": "chatml"}, kept={})
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 256}))
    return made


@pytest.fixture(params=cases(SHIPPED, QUICKLY))
def finished(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Whole]:
    name = request.param
    if name == "repairs" and not has("bwrap"):
        left_out("bubblewrap", "the recipe `repairs`, whose commands run in boxes")
    whole = Whole(tmp_path / "state", shortened(name, tmp_path), name)
    whole.go()
    yield whole
    whole.stop()


def test_retrained_steps_of_a_shipped_recipe_are_bit_identical(finished: Whole) -> None:
    for part in finished.parts:
        steps = finished.steps(part)
        assert [step.step for step in steps] == [1, 2]
        assert any(step.metrics["grad_norm"] > 0 for step in steps)

        report = retrain_and_tell(
            finished,  # type: ignore[arg-type]
            part.trained(),
            (1, STEPS),
            version=None,
            threads=torch.get_num_threads(),
            tell=print,
        )

        assert [step["digest"] for step in report["steps"]] == [s.weights_digest for s in steps]
        assert report["differing"] == []
