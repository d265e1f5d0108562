"""Gradients added group by group equal those of the batch, in any order."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch

from rollcall.schemas.errors import BatchFailed, Refused
from rollcall.trainer.config.fitting import COUNTS_TOKENS
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner.step import Learner
from rollcall.trainer.learner.streaming import by_group
from rollcall.trainer.rules.aggregates import AGGREGATES
from rollcall.trainer.rules.samples import Sample
from tests.support.scored_trajectories import sample, scored, sequence, some_samples

STREAM = {"stream": True, "max_staleness": 0, "advantage": "grpo", "lr": 1e-2, "steps": 20}


def learner_of(model_directory: str, **changes: Any) -> Learner:
    config = LearnerConfig.of({**STREAM, "aggregate_norm": 8, "max_grad_norm": 1e9, **changes})
    learner = Learner(model_directory, config)
    learner.model.double()
    return learner


def in_groups(samples: Sequence[Sample], count: int = 4) -> list[Sample]:
    """Whose members lie between one another in the log."""
    return [replace(each, compared_in=f"g{n % count}") for n, each in enumerate(samples)]


def gradients(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in learner.model.named_parameters()}


def streamed(learner: Learner, groups: Sequence[Sequence[Sample]]) -> dict[str, float]:
    streaming = learner.streaming()
    for group in groups:
        learner.stream(streaming, group)
    return learner.finish(streaming)


@pytest.mark.parametrize(
    ("aggregate", "more"),
    [
        *((each, {}) for each in sorted(AGGREGATES)),
        ("token_mean", {"kl": "k2", "step_size": "ess", "packing": "shared"}),
        ("token_mean", {"loss": "ppo_ewma"}),
    ],
)
def test_any_order_of_groups_gives_the_gradient_of_the_batch(
    model_directory: str, aggregate: str, more: dict[str, Any]
) -> None:
    samples = in_groups(some_samples(0))
    groups = by_group(samples)
    Random(3).shuffle(groups)
    one, whole = (
        learner_of(model_directory, aggregate=aggregate, stream=stream, **more)
        for stream in (True, False)
    )

    told, exact = streamed(one, groups), whole.step(samples)

    assert told.keys() == exact.keys()
    for key, value in exact.items():
        assert told[key] == pytest.approx(value, rel=1e-6, abs=1e-9), key
    for name, grad in gradients(whole).items():
        apart = torch.linalg.vector_norm(gradients(one)[name] - grad)
        assert apart <= 1e-6 * torch.linalg.vector_norm(grad), name


def test_log_order_gives_the_bits_of_the_batch(model_directory: str) -> None:
    one, whole = (learner_of(model_directory) for _ in range(2))

    for number in range(3):
        samples = in_groups(some_samples(number))
        assert streamed(one, by_group(samples)) == whole.step(samples)

    assert one.state() == whole.state()


def test_weights_do_not_change_until_the_batch_is_complete(model_directory: str) -> None:
    learner = learner_of(model_directory)
    before = learner.tensors()
    streaming = learner.streaming()

    for group in by_group(in_groups(some_samples(0))):
        learner.stream(streaming, group)
        assert learner.tensors() == before

    learner.finish(streaming)
    assert learner.tensors() != before
    assert learner.version == 1


def test_a_group_that_fails_to_stream_leaves_nothing_behind(model_directory: str) -> None:
    learner, untouched = (learner_of(model_directory) for _ in range(2))
    foreign = sample(scored("x", sequences=(sequence([1, 10**6], [0, 1]),)), 99)
    samples = in_groups(some_samples(0))
    first, second, *_ = by_group(samples)
    streaming = learner.streaming()
    learner.stream(streaming, first)

    with pytest.raises(BatchFailed, match="IndexError"):
        learner.stream(streaming, [*second, replace(foreign, compared_in="g1")])

    assert learner.step(samples) == untouched.step(samples)
    assert learner.tensors() == untouched.tensors()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_staleness": 1}, "max_staleness 1: only 0 is on-policy"),
        ({"epochs": 2}, "several epochs"),
        ({"minibatch": 4}, "several epochs or minibatches"),
        ({"advantage": "batch_normalised"}, "advantage 'batch_normalised', which looks at more"),
        ({"advantage": {"name": "opob", "scope": "batch"}}, "advantage 'opob', which looks at"),
        ({"exploration": "entropy_target"}, "exploration 'entropy_target', which looks at"),
        ({"filters": ["high_entropy"]}, "filters 'high_entropy', which looks at"),
        ({"loss": "m2po"}, "loss 'm2po', which looks at all tokens"),
        ({"replay_ratio": 0.5}, "replay_ratio or success_pool"),
        ({"over_provision": 2, "mask_continued": True}, "what is cut off"),
        ({"aggregate": f"{__name__}:halved"}, "aggregate .*, whose denominator is not known"),
        ({"stream": 1}, "stream is 1; give true or false"),
    ],
)
def test_settings_that_need_more_than_a_group_are_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(Refused, match=message):
        LearnerConfig.of({**STREAM, **change})


def halved(lengths: Any, norm: int) -> Any:
    return 0.5 / lengths


def test_every_aggregate_declares_its_divisor() -> None:
    assert COUNTS_TOKENS.keys() == AGGREGATES.keys()
    assert LearnerConfig.of({**STREAM, "advantage": "opob"}).stream
    assert LearnerConfig(stream=False).digest() == LearnerConfig().digest()
