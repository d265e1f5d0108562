"""What every shipped recipe has trained is trained again from the record, to the bit."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from compose.pages.retraining_page import retrain_and_tell
from compose.runs import run_folder
from compose.runs.recipe import SHIPPED, load_recipe, parse_recipe
from compose.settings import Settings
from compose.workers.build import Workshop
from compose.workers.run_trainer import run_trainer
from compose.workers.served_policy import run_engine
from consumers.log.memory_log import MemoryLog
from inference.gguf_policy import make_gguf_policy
from schemas.codec import Codec, LocalRegistry
from schemas.messages import TrainStep, Trajectory
from schemas.objects import ObjectStore
from schemas.topics import Topics, wanted
from tests.support import tiny_gguf
from tests.support.engines import has, left_out
from tests.support.waiting import until

STEPS = 2


class Whole:
    """A run on the in-memory log with all of its policies; it is what commands read history of."""

    def __init__(self, state: Path, text: str, name: str) -> None:
        recipe = parse_recipe(text, name)
        self.folder = run_folder.create(state, recipe, text, seed=5)
        self.parts = self.folder.parts()
        self.topics = Topics("m.")
        self.log = MemoryLog(wanted("m.", [part.policy_id for part in self.parts], partitions=2))
        self.codec = Codec(LocalRegistry(), objects=ObjectStore(f"{state}/objects"))
        settings = Settings(state_dir=state, cache_dir=state / "cache")
        shop = Workshop(self.log, self.codec, self.topics, settings, watched=False)
        self.trainers = [run_trainer(shop, f"training-{p.name}", p) for p in self.parts]
        scorers = {part.recipe.scoring_id: part.recipe.scorers for part in self.parts}
        self.loops = [
            shop.agents("agents"),
            *(
                shop.models(f"models-{part.name}", run_engine(part, settings))
                for part in self.parts
            ),
            shop.environments("environments"),
            *(shop.rewards(f"rewards-{each}", names, each) for each, names in scorers.items()),
        ]

    def go(self) -> None:
        """To its end."""

        def over() -> bool:
            while self._turn():
                pass
            return all(trainer.done() for trainer in self.trainers)

        until(over, 240, lambda: f"{[each.running() for each in self.trainers]} rollouts run")

    def _turn(self) -> int:
        """How much has moved."""
        at_work = [trainer for trainer in self.trainers if not trainer.done()]
        moved = sum(loop.turn(0.0) for loop in self.loops)
        return moved + sum(trainer.turn(0.0) for trainer in at_work)

    def close(self) -> None:
        for loop in self.loops:
            loop.stop(1.0)


def odd(trajectory: Trajectory) -> float:
    """What a model of random weights earns by being as it is: it is never right."""
    return float(sum(trajectory.result.encode()) % 2)


def shortened(name: str, directory: Path) -> str:
    """A shipped recipe of two steps; where it wants a fetched model, of one that is made here."""
    text = load_recipe(name)[1]
    text = re.sub(r"(?m)^steps = \d+", f"steps = {STEPS}", text)
    heading, _, rest = text.partition("[evaluation]")
    first = re.search(r"seeds = \[([\d_]+),", rest)
    assert first
    rest = re.sub(r"seeds = .*", f"seeds = [{first[1]}, {int(first[1]) + 2}]", rest, count=1)
    text = f"{heading}[evaluation]{re.sub('(?m)^goal = .*', '', rest)}"
    if 'directory = "smollm2"' in text:
        text = text.replace('directory = "smollm2"', f"directory = '{stand_in(directory)}'")
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


@pytest.fixture(params=SHIPPED)
def finished(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Whole]:
    name = request.param
    if name == "repairs" and not has("bwrap"):
        left_out("bubblewrap", "the recipe `repairs`, whose commands run in boxes")
    whole = Whole(tmp_path / "state", shortened(name, tmp_path), name)
    whole.go()
    yield whole
    whole.close()


def test_steps_of_a_shipped_recipe_come_out_the_same_to_the_bit(finished: Whole) -> None:
    found = [finished.codec.decode(r.value, TrainStep) for r in finished.log.all("m.train.steps")]
    for part in finished.parts:
        steps = [step for step in found if step.policy_id == part.policy_id]
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
