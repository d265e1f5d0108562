"""Two ranks in a whole trainer: what they announce and keep is what one process would.

From the record two ranks train it again to the bit.
"""

import math
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
import torch
from torch import Tensor

from rollcall.trainer.checkpoints import checkpoint as checkpoints
from rollcall.trainer.weights.tensors import tensor_of
from tests.support.ranked_run import AGAIN, RUN_ID, SAID, announced
from tests.support.ranked_run import RECIPE as RECIPE_FILE
from tests.support.tiers import cases, selected
from tests.support.tiny_run import RECIPE, World

pytestmark = pytest.mark.timeout(300)
SAVING = 'save = "async"\nannounce = "early"\n'
PUBLISHED = '[policy]\npublish = "bfloat16"\nweights = "delta"\nfull_every = 3\n'
LORA = "[policy.lora]\nrank = 2\nalpha = 8.0\n"
KINDS = {
    "delta": (SAVING + "gradient_checkpointing = true\n", PUBLISHED, ""),
    "bfloat16": (SAVING + 'precision = "bfloat16"\n', PUBLISHED, ""),
    "adapter": (SAVING, '[policy]\npublish = "bfloat16"\nweights = "adapter"\n', LORA),
}
NEAR = {"delta": 1e-4, "bfloat16": 0.1, "adapter": 1e-4}
"""How far apart weights may be, of the way that they have gone: seen were 3e-6, 0.02 and 4e-7.

Sums of other orders differ by a rounding of 2^-24 or, computed in bfloat16, of 2^-9. Adam's first
steps have nearly its whole length whatever the gradient's size, so a parameter whose gradient is as
small as that rounding may go the other way, 2 steps off: 0.1 is what 0.25 % of them come to, since
2 * sqrt(0.0025) = 0.1. Seen were 0.05 and 0.14 %.
"""


def recipe_of(kind: str, ranks: int) -> str:
    learner, policy, more = KINDS[kind]
    text = RECIPE.replace("steps = 4", "steps = 2\nlr = 1e-3").replace("[policy]\n", policy)
    text = text.replace("group_size = 4\n", f"group_size = 4\nranks = {ranks}\n{learner}")
    return text + more


def state_at(directory: Path, version: int) -> dict[str, Tensor]:
    weights = checkpoints.load(directory / "checkpoints" / f"v{version:08d}").state.weights
    return {name: tensor_of(tensor).float() for name, tensor in weights.items()}


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return math.hypot(*(float((one[name] - other[name]).norm()) for name in one))


@pytest.fixture(scope="module")
def ranked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The records of two ranks training a run of each selected kind."""
    place = tmp_path_factory.mktemp("ranked")
    for kind in selected(request, "kind"):
        (place / kind).mkdir()
        (place / kind / RECIPE_FILE).write_text(recipe_of(kind, 2))
    command = [sys.executable, "-m", "tests.support.ranked_run", "2", str(place)]
    ended = subprocess.run(command, capture_output=True, timeout=200)
    assert ended.returncode == 0, ended.stderr.decode()[-2000:]
    return place


@pytest.mark.parametrize("kind", cases(KINDS))
def test_two_ranks_announce_and_keep_the_same_as_one(
    kind: str, ranked: Path, tmp_path: Path
) -> None:
    # Given the run of two ranks
    said = orjson.loads((ranked / kind / SAID).read_bytes())

    # When one process takes the same run's steps
    torch.set_num_threads(1)
    alone = World(tmp_path, recipe_of(kind, 1), run_id=RUN_ID)
    trainer = alone.trainer()
    alone.train(trainer)
    trainer.saver.save_trained(wait=True)
    alone.close()

    # Then both have trained on the same, announced as many versions in the same form, and kept
    # the same weights
    ours, theirs = alone.folder.directory, Path(said.pop("run"))
    assert said == announced(alone)
    begun = state_at(ours, 0)
    assert distance(begun, state_at(theirs, 0)) == 0
    for version in (1, 2):
        went = distance(state_at(ours, version), begun)
        assert went > 0
        assert distance(state_at(ours, version), state_at(theirs, version)) < NEAR[kind] * went


@pytest.mark.parametrize("kind", cases(KINDS))
def test_steps_of_two_ranks_are_retrained_by_two_bit_for_bit(kind: str, ranked: Path) -> None:
    report = orjson.loads((ranked / kind / AGAIN).read_bytes())

    assert (report["ranks"], report["otherwise"], report["differing"]) == (2, [], [])
    assert [step["identical"] for step in report["steps"]] == [True, True]
    assert "2 ranks of 1 thread each" in report["told"][0]
