"""A learner and an engine on a GPU match those on a CPU, with the same bits each time.

These tests are skipped where no CUDA device is.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rollcall.inference.transformers_engine import TransformersEngine
from rollcall.schemas.errors import BatchFailed
from rollcall.schemas.packed import ids_of, logprobs_of
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner.step import Learner
from tests.support.policies import body, call, lake, version_of
from tests.support.scored_trajectories import sample, scored, sequence, some_samples

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here")

CONFIG = LearnerConfig(entropy=0.01, lr=1e-2, steps=20)
MODES = [
    {"precision": precision, "gradient_checkpointing": twice, "packing": packing}
    for precision in ("float32", "bfloat16")
    for twice, packing in ((False, "rows"), (True, "shared"), (False, "packed"))
]


@pytest.fixture(autouse=True)
def _no_deprecations() -> Iterator[None]:
    """Libraries of the GPU's machine may be of other versions than those of the lock file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_the_same_batches_give_the_same_bits(model_directory: str, mode: dict[str, object]) -> None:
    config = LearnerConfig.of(mode)
    learners = [Learner(model_directory, config, device="cuda") for _ in range(2)]

    told = [[learner.step(some_samples(n, 60)) for n in range(3)] for learner in learners]

    assert told[0] == told[1]
    assert learners[0].state() == learners[1].state()
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("packing", ["rows", "shared", "packed"])
@pytest.mark.parametrize("loss", ["cispo", "clip_higher", "gspo", "m2po", "decoupled_ppo"])
def test_steps_on_a_gpu_match_those_on_a_cpu(model_directory: str, packing: str, loss: str) -> None:
    aggregate = {"aggregate": "seq_mean_token_mean"} if loss == "gspo" else {}
    config = LearnerConfig.of({"loss": loss, "packing": packing, "lr": 1e-3, **aggregate})
    here, there = (Learner(model_directory, config, device=name) for name in ("cpu", "cuda"))

    told = [[learner.step(some_samples(n)) for n in range(3)] for learner in (here, there)]

    for ours, theirs in zip(*told, strict=True):
        assert theirs == pytest.approx(ours, rel=1e-3, abs=1e-5)
    for ours, theirs in zip(here.model.parameters(), there.model.parameters(), strict=True):
        torch.testing.assert_close(theirs.cpu(), ours, atol=1e-4, rtol=1e-3)


def test_resuming_from_a_checkpoint_gives_the_same_bits(model_directory: str) -> None:
    learner, later = (Learner(model_directory, CONFIG, device="cuda") for _ in range(2))
    learner.step(some_samples(0))
    state = learner.state()
    learner.step(some_samples(1))

    later.load(state)
    later.step(some_samples(1))

    assert later.state() == learner.state()


def test_an_unknown_token_fails_its_batch_but_not_the_device(
    model_directory: str,
) -> None:
    learner, untouched = (Learner(model_directory, CONFIG, device="cuda") for _ in range(2))
    foreign = sample(scored("x", sequences=(sequence([1, 10**6], [0, 1]),)), 99)

    with pytest.raises(BatchFailed, match=r"13 samples .*token 1000000"):
        learner.step([*some_samples(3), foreign])

    assert learner.step(some_samples(4)) == untouched.step(some_samples(4))


@pytest.mark.parametrize("config", ["gpt2", "qwen2", "llama"])
def test_a_gpu_engine_serves_weights_announced_from_a_cpu(tmp_path: Path, config: str) -> None:
    policy = lake(tmp_path / "lake", config)
    engines = [TransformersEngine("policy", policy, device=name) for name in ("cpu", "cuda")]
    for engine in engines:
        engine.stage(version_of(policy, 0))
        engine.adopt()

    asked = [call(f"r{n}", said="s1 " * (1 + 7 * n), max_tokens=12) for n in range(6)]
    answers = [[body(engine, one) for one in asked] for engine in engines]

    for ours, theirs in zip(*answers, strict=True):
        assert ids_of(theirs.token_ids).tolist() == ids_of(ours.token_ids).tolist()
        torch.testing.assert_close(
            torch.from_numpy(logprobs_of(theirs.logprobs).copy()),
            torch.from_numpy(logprobs_of(ours.logprobs).copy()),
            atol=1e-4, rtol=0,
        )  # fmt: skip
