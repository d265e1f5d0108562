"""Corrections weigh or mask tokens by the mismatch of trainer and engine."""

from collections.abc import Sequence
from dataclasses import replace
from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rollcall.schemas.errors import Refused
from rollcall.schemas.rules import NoOptions
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.rules.catalogue import CORRECTIONS
from rollcall.trainer.rules.corrections import (
    Cap,
    Rejection,
    Window,
    icepop,
    mis,
    no_correction,
    tis,
)
from rollcall.trainer.rules.tokens import Tokens
from tests.support.golden import golden
from tests.support.token_views import everything, piece


def view(log_ratios: Sequence[float], mask: Sequence[bool] = ()) -> Tokens:
    """One sequence whose tokens the trainer's network finds so much likelier than the engine."""
    mu_BT = torch.full((1, len(log_ratios)), -1.0, dtype=torch.float64)
    old_BT = mu_BT + torch.tensor([log_ratios], dtype=torch.float64)
    mask_BT = torch.tensor([mask]) if mask else None
    return piece(old_BT.clone(), old_BT, 1.0, mask_BT, mu_BT=mu_BT)


def rounded(weight_BT: Tensor) -> list[float]:
    return [round(each, 6) for each in weight_BT[0].tolist()]


@golden("correction", "tis")
def test_tis_weights_match_published_values() -> None:
    assert rounded(tis(view([0.2, 1.0]), Cap())) == [1.221403, 2.0]
    assert rounded(tis(view([0.2, 1.0]), Cap(level="sequence", cap=9.0))) == [3.320117] * 2
    assert rounded(tis(view([0.2, 1.0]), Cap(level="geometric"))) == [1.822119] * 2


@golden("correction", "icepop")
def test_icepop_weights_match_published_values() -> None:
    found = icepop(view([log(0.49), log(0.5) + 1e-12, 0.0, log(5) - 1e-12, log(5.01)]), Window())

    assert rounded(found) == [0, 0.5, 1, 5, 0]


@golden("correction", "mis")
@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (Rejection(), [1, 1, 1]),
        (Rejection(high=1.15), [1, 1, 0]),
        (Rejection(low=0.96), [1, 0, 1]),
        # The product is 1.221403, its geometric mean 1.068939.
        (Rejection("sequence"), [1, 1, 1]),
        (Rejection("sequence", high=1.221402), [0, 0, 0]),
        (Rejection("sequence", high=1.221404), [1, 1, 1]),
        (Rejection("geometric"), [0, 0, 0]),
        (Rejection("geometric", high=1.068938), [0, 0, 0]),
        (Rejection("geometric", high=1.068940), [1, 1, 1]),
    ],
)
def test_mis_rejects_at_published_values(options: Rejection, kept: list[int]) -> None:
    assert rounded(mis(view([0.1, -0.05, 0.15]), replace(options, weight="none"))) == kept


def test_mis_weighs_kept_tokens_by_their_ratio_as_trl_does() -> None:
    ratios = [1.105171, 0.951229, 1.161834]
    apart = [0.1, -0.05, 0.15]

    assert rounded(mis(view(apart), Rejection())) == ratios
    assert rounded(mis(view(apart), Rejection(high=1.15))) == [*ratios[:2], 0]
    assert rounded(mis(view(apart), Rejection("sequence"))) == [1.221403] * 3
    whole = Rejection("sequence", weight="token")
    assert rounded(mis(view(apart), whole)) == ratios
    assert rounded(mis(view(apart), replace(whole, high=1.2))) == [0, 0, 0]


def test_a_far_off_token_rejects_its_whole_sequence() -> None:
    assert rounded(mis(view([0.0, -9.3]), Rejection())) == [0, 0]
    assert rounded(mis(view([0.0, -9.3]), Rejection(veto=0))) == [1, 0]
    # Tokens of others do not count.
    assert rounded(mis(view([0.0, -9.3], [True, False]), Rejection("sequence")))[0] == 1


@golden("correction", "none")
def test_no_correction_weighs_every_token_by_one() -> None:
    assert rounded(no_correction(view([0.5, -3.0]), NoOptions())) == [1, 1]


@pytest.mark.parametrize("name", sorted(CORRECTIONS))
@given(ratios=st.lists(st.floats(-40, 40), min_size=1, max_size=5))
def test_a_correction_mask_changes_no_other_cost_and_no_denominator(
    name: str, ratios: list[float]
) -> None:
    """The weights of tokens hold all denominators, and a correction only multiplies a cost."""
    config = LearnerConfig(loss="policy_gradient", old_logprobs="recompute", correction=name)
    objective = config.rules.objective
    tokens = view(ratios)
    old_BT = tokens.old_BT.clone().requires_grad_()
    seen = piece(
        tokens.lp_BT.requires_grad_(), old_BT, 1.0, mu_BT=tokens.mu_BT,
        **everything(old_BT),
    )  # fmt: skip
    weight_BT = CORRECTIONS[name](seen, CORRECTIONS[name].options())
    costs, _ = objective(seen)
    costs.cost_BT.sum().backward()

    assert torch.equal(costs.cost_BT, -seen.lp_BT * weight_BT)
    assert torch.equal(seen.lp_BT.grad, -weight_BT.detach())
    assert old_BT.grad is None
    assert weight_BT.isfinite().all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"correction": "tis"}, "'tis' compares .* old_logprobs 'none' has none .*use recompute"),
        ({"correction": "mis", "old_logprobs": "loglinear"}, "'loglinear' has none"),
        ({"correction": "icepop", "old_logprobs": "ewma"}, "'ewma' has none of its own"),
        (
            {"correction": "tis", "old_logprobs": "recompute", "loss": "gspo"},
            "loss 'gspo' has one ratio for a sequence.* level = 'geometric'",
        ),
        (
            {"correction": "mis", "old_logprobs": "recompute", "loss": "m2po"},
            "'m2po' takes its ratio over the engine's own .* staleness twice",
        ),
        ({"correction": "tiss"}, "did you mean 'tis'"),
        ({"correction": {"name": "mis", "level": "turn"}}, "level is 'turn'; use one of token"),
        ({"correction": {"name": "mis", "low": 2.0}}, r"low is 2.0; give a number in \[0, 1\]"),
        ({"correction": {"name": "mis", "high": "x"}}, "high is 'x'"),
        ({"correction": {"name": "tis", "cap": 0.5}}, "cap is 0.5"),
        ({"correction": {"name": "icepop", "low": 1.5}}, "low is 1.5"),
        ({"kl": {"name": "k2", "weight": 0.0}}, "weight is 0.0; give a number above 0"),
        ({"old_logprobs": "interrupt"}, "old_logprobs 'interrupt' scores what is cut off"),
        (
            {"loss": {"name": "ppo_ewma", "decay": 0.5}, "old_logprobs": "ewma"},
            "two decays of one average",
        ),
        ({"step_size": {"name": "ess", "base": 0.0}}, "base is 0.0"),
        ({"step_size": {"name": "ess", "level": "turn"}}, "level is 'turn'"),
        ({"loss": {"name": "ppo_ewma", "decay": 1.0}}, "decay is 1.0"),
    ],
)
def test_incompatible_correction_rules_are_refused_with_the_reason(
    values: dict[str, object], message: str
) -> None:
    with pytest.raises(Refused, match=message):
        LearnerConfig.of(values)


def test_a_sequence_level_correction_works_with_a_sequence_level_ratio() -> None:
    geometric = {"name": "mis", "level": "geometric"}
    own = {"loss": "gspo", "aggregate": "seq_mean_token_mean"}
    values = {"correction": geometric, "old_logprobs": "recompute", **own}

    assert LearnerConfig.of(values).rules.objective.corrects
