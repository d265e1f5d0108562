"""The gradient of a batch, accumulated piece by piece in the parameters of a model.

Pieces are summed, never averaged: each token's weight contains every denominator already, so a
batch in pieces gives the gradient of the whole.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from rollcall.schemas.errors import Refused
from rollcall.schemas.rules import ChosenRule, Need
from rollcall.trainer.batch.pieces import MicroBatch
from rollcall.trainer.batch.rows import Batch
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner.forward import Forward, forward
from rollcall.trainer.rules.objective import Objective
from rollcall.trainer.rules.rewards import Exploration
from rollcall.trainer.rules.tokens import Costs, StepTokens, Tokens, k3


@dataclass
class Gradient:
    """The gradient of one update: `add` the pieces, then read the sums."""

    model: nn.Module
    config: LearnerConfig
    objective: Objective
    version: int
    """The version of the weights at the step's start."""
    step: StepTokens | None = None
    uniform_tokens: tuple[int, ...] | None = None
    """Token ids for KL(uniform ‖ policy), if a rule needs it; empty: all tokens."""
    cost: float = 0.0
    metric_names: tuple[str, ...] = ()
    """Names of further metrics per token that rules return."""
    tokens: dict[int, np.ndarray] = field(default_factory=dict)
    """Metrics per token of each added row."""

    def add(self, micro: MicroBatch) -> None:
        """Add the gradient of a piece to that in the parameters."""
        scores = forward(self.model, micro, self.config.temperature, self.uniform_tokens)
        costs, metrics = self.objective(tokens_of(micro, scores.lp_BT, self.step, self.version))
        cost_BT = costs.cost_BT - micro.entropy_B1 * scores.entropy_BT
        cost_M = cost_BT[scores.b_M, scores.t_M] * micro.weight_B[scores.b_M]
        if scores.uniform_M is not None:
            worth_M = micro.uniform_BT[scores.b_M, scores.t_M] * micro.weight_B[scores.b_M]
            cost_M = cost_M + worth_M * scores.uniform_M
        cost = cost_M.sum()
        cost.backward()
        self.cost += float(cost.detach())
        self.metric_names = tuple(metrics)
        self.tokens |= numbers_per_token(micro, scores, costs, metrics.values())

    def numbers(self) -> list[np.ndarray]:
        """Return the metrics per token of each added row, in log order."""
        return [self.tokens[row] for row in sorted(self.tokens)]


def tokens_of(micro: MicroBatch, lp_BT: Tensor, step: StepTokens | None, version: int) -> Tokens:
    """Return the input of a loss for a piece."""
    return Tokens(
        lp_BT,
        micro.behaviour_logprobs_BT,
        micro.behaviour_logprobs_BT,
        micro.advantage_BT,
        micro.mask_BT,
        micro.reward_B,
        micro.versions_BT,
        version=version,
        prox_BT=micro.seen.get("prox"),
        ref_BT=micro.seen.get("ref"),
        ewma_BT=micro.seen.get("ewma"),
        snapshot_BT=micro.seen.get("snapshot"),
        noted_BT=micro.seen.get("noted"),
        teacher_BT=micro.teacher_BT,
        step=step,
    )


def numbers_per_token(
    micro: MicroBatch, forward: Forward, costs: Costs, more: Iterable[Tensor] = ()
) -> dict[int, np.ndarray]:
    """Return per row float64 [5 + more, n]: ratio, clipped, entropy, k3, log-ratio."""
    b_M, t_M = forward.b_M, forward.t_M
    lp_M, old_M = forward.lp_BT[b_M, t_M], micro.behaviour_logprobs_BT[b_M, t_M]
    numbers = [costs.ratio_BT[b_M, t_M], costs.clipped_BT[b_M, t_M], forward.entropy_BT[b_M, t_M]]
    numbers += [k3(lp_M, old_M), lp_M - old_M, *(each_BT[b_M, t_M] for each_BT in more)]
    table = torch.stack([n.detach().to("cpu", torch.float64) for n in numbers]).numpy()
    owner = b_M.cpu().numpy()
    return {row: table[:, owner == b] for b, row in enumerate(micro.rows)}


def step_tokens(batch: Batch) -> StepTokens | None:
    """Return the sampled tokens of an update in log order; None without a pass before the step."""
    prox = [row.seen["prox"][row.mask] for row in batch.rows if "prox" in row.seen]
    if not prox:
        return None
    mu_K = _gathered([row.behaviour_logprobs[row.mask] for row in batch.rows])
    owners = [np.full(int(row.mask.sum()), b) for b, row in enumerate(batch.rows)]
    return StepTokens(
        _gathered(prox),
        mu_K,
        _gathered([row.advantages[row.mask] for row in batch.rows]),
        torch.from_numpy(np.concatenate(owners)),
    )


def _gathered(arrays: list[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.concatenate(arrays).astype(np.float64))


def uniform_tokens_of(rule: ChosenRule[Exploration], vocabulary: int) -> tuple[int, ...] | None:
    """Return the token ids of a rule's uniform distribution, () for all; None without such a rule.

    Raises Refused for ids that the model does not have.
    """
    if not rule.needs(Need.UNIFORM):
        return None
    tokens: tuple[int, ...] = getattr(rule.options, "tokens", ())
    if max(tokens, default=0) >= vocabulary:
        msg = (
            f"exploration {rule.rule.name!r}: tokens has {max(tokens)}, and the policy has "
            f"{vocabulary} tokens; give ids below that"
        )
        raise Refused(msg)
    return tokens
