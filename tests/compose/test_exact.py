"""With `[learner] exact`, engine and trainer compute bit-identical log-probabilities."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rollcall.compose.runs.recipe import parse_recipe
from rollcall.compose.settings import ModelsSettings, Settings, TrainingSettings
from rollcall.compose.workers.engines import check_exact
from rollcall.inference.transformers_engine import TransformersEngine
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import ModelAnswered, ModelCall
from rollcall.schemas.packed import ids_of, logprobs_of
from rollcall.trainer.batch.pieces import padded
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner.forward import forward
from tests.support.policies import CONFIGS, after, call, lake, run, take, version_of, weighted
from tests.support.scored_trajectories import make_batch, sample, scored, sequence
from tests.support.tiers import cases
from tests.support.tiny_run import RECIPE, World

EXACT = RECIPE.replace("steps = 4", "steps = 4\nexact = true")


@pytest.fixture(scope="module", params=cases(sorted(CONFIGS)))
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lake(tmp_path_factory.mktemp("exact") / request.param, request.param)


class Said:
    """The sequence of one rollout, as its journal has it."""

    def __init__(self, rollout: str) -> None:
        self.rollout, self.position = rollout, 0
        self.ids: list[int] = []
        self.mask: list[int] = []
        self.logprobs: list[float] = []
        self.prefix = b""

    def next(self, words: int, max_tokens: int) -> ModelCall:
        self.position += 1
        return call(
            self.rollout, self.position, said="s1 " * words, prefix=self.prefix,
            max_tokens=max_tokens,
        )  # fmt: skip

    def heard(self, one: ModelCall, answered: ModelAnswered) -> None:
        added, sampled = ids_of(answered.added_ids).tolist(), ids_of(answered.token_ids).tolist()
        self.ids += added + sampled
        self.mask += [0] * len(added) + [1] * len(sampled)
        self.logprobs += [0.0] * len(added) + logprobs_of(answered.logprobs).tolist()
        self.prefix = after(one, answered)


def conversations(engine: TransformersEngine) -> list[Said]:
    """Of several turns and lengths, in batches that differ from turn to turn."""
    everybody = [Said(f"r{number}") for number in range(5)]
    for turn in range(4):
        speaking = everybody[turn % 2 :]
        calls = [said.next(1 + 3 * n, 3 + turn) for n, said in enumerate(speaking)]
        for said, one, answer in zip(speaking, calls, run(engine, *calls), strict=True):
            assert isinstance(answer.body, ModelAnswered)
            said.heard(one, answer.body)
    return everybody


def trained_logprobs(policy: Path, said: list[Said], *, exact: bool) -> tuple[torch.Tensor, ...]:
    """The engine's and the trainer's, with gradients on, as a step has them."""
    samples = [
        sample(scored(each.rollout, sequences=(sequence(each.ids, each.mask, each.logprobs),)))
        for each in said
    ]
    batch = make_batch(samples, LearnerConfig())
    micro = replace(padded(batch, range(len(batch.rows))), exact=exact)
    model = weighted(policy, 1).requires_grad_(True)
    found = forward(model, micro, 1.0)
    assert found.lp_BT.requires_grad
    mask = micro.mask_BT
    return micro.behaviour_logprobs_BT[mask], found.lp_BT[mask].detach()


def test_every_sampled_token_has_identical_logprobs_in_engine_and_trainer(policy: Path) -> None:
    engine = TransformersEngine("policy", policy, exact=True)
    take(engine, version_of(policy, 1))
    said = conversations(engine)

    engines, trainers = trained_logprobs(policy, said, exact=True)

    assert len(engines) > 60
    assert max(len(each.ids) for each in said) > 64, "no more than two widths are seen"
    assert torch.equal(engines.float(), trainers.float())


def test_exact_engine_samples_the_same_tokens_with_close_logprobs(policy: Path) -> None:
    found = []
    for exact in (False, True):
        engine = TransformersEngine("policy", policy, exact=exact)
        take(engine, version_of(policy, 1))
        found.append(conversations(engine))

    for other, exactly in zip(*found, strict=True):
        assert other.ids == exactly.ids
        np.testing.assert_allclose(other.logprobs, exactly.logprobs, atol=1e-4)


def test_exact_run_measures_no_difference_at_any_step(tmp_path: Path) -> None:
    world = World(tmp_path, EXACT)
    trainer = world.trainer()

    world.train(trainer)
    steps = world.steps()
    world.close()

    measured = [step.metrics["gen_kl"] for step in steps if "gen_kl" in step.metrics]
    assert len(steps) == 4
    assert measured
    assert measured == [0.0] * len(measured)


@pytest.mark.parametrize(
    ("models", "training", "policy_lines", "said"),
    [
        ({"engine": "vllm"}, {}, "", "models.engine 'transformers', and it is 'vllm'"),
        ({"device": "cuda"}, {}, "", "models.device 'cpu'"),
        ({"python": "/x/python"}, {}, "", "models.python ''"),
        ({"threads": 2}, {}, "", "models.threads 1, and it is 2"),
        ({}, {"device": "cuda"}, "", "training.device 'cpu'"),
        ({}, {}, 'publish = "bfloat16"', "policy.publish 'float32', and it is 'bfloat16'"),
        ({}, {}, 'script = "null"', "policy.script ''"),
    ],
)
def test_exact_is_refused_for_settings_that_cannot_agree(
    models: dict[str, str], training: dict[str, str], policy_lines: str, said: str
) -> None:
    text = EXACT.replace("[policy]\n", f"[policy]\n{policy_lines}\n")
    settings = Settings(
        models=ModelsSettings(**models),  # type: ignore[arg-type]
        training=TrainingSettings(**training),  # type: ignore[arg-type]
    )

    with pytest.raises(Refused, match=rf"\[learner\] exact needs .*{said}"):
        check_exact(settings, parse_recipe(text, "tiny"))
    check_exact(settings, parse_recipe(text.replace("exact = true", ""), "tiny"))


@pytest.mark.parametrize("others", [{"packing": "shared"}, {"precision": "bfloat16"}, {"ranks": 2}])
def test_learner_that_cannot_be_exact_is_refused(others: dict[str, object]) -> None:
    with pytest.raises(Refused, match=f"exact needs {next(iter(others))} "):
        LearnerConfig.of({"exact": True, **others})
