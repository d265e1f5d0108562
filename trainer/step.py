"""One optimiser step: a batch of samples in, new weights and their metrics out.

Laws: the same batches on the same number of threads give the same bits; a batch in pieces gives
the gradient of the whole; a step without a finite gradient changes nothing, and neither does one
whose arithmetic raises: that is a `BatchFailed`, and no step. `old` is always what
the engine reported when it sampled, never recomputed here. Dropout is off: the model stays in
evaluation mode, so that lp is the log-probability of the policy that was sampled from.

Shapes: B sequences, T tokens, V words, M sampled tokens of a micro-batch; N trajectories.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from schemas.errors import BatchFailed, Refused, Unfit
from schemas.packed import pack_ids, pack_logprobs
from schemas.weights import RawTensor
from trainer.advantage import rule
from trainer.batch import Batch, MicroBatch, make_batch, micro_batches
from trainer.config import LearnerConfig
from trainer.loss import Costs, entropy, k3, loss
from trainer.samples import Sample
from trainer.tensors import load_tensors, raw_of, tensor_of, tensors_of

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
CANARY_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Canary:
    """A fixed prompt and what the learner thinks of it, packed as in PolicyVersion."""

    ids: bytes
    logprobs: bytes
    """Of ids[1:], float32."""


@dataclass(frozen=True, slots=True)
class LearnerState:
    """All that a learner is, so that it goes on bit for bit."""

    step: int
    version: int
    skipped: int
    weights: Mapping[str, RawTensor]
    optimiser: Mapping[str, RawTensor]
    rng: Mapping[str, RawTensor]


@dataclass(frozen=True, slots=True)
class Forward:
    """What the model says to a micro-batch; `b_M`, `t_M` are the places of its sampled tokens."""

    lp_BT: Tensor
    entropy_BT: Tensor
    b_M: Tensor
    t_M: Tensor


class Learner:
    """A policy that is trained. `version` numbers the weights it holds now."""

    def __init__(
        self, model_directory: str, config: LearnerConfig, *, device: str = "cpu", version: int = 0
    ) -> None:
        torch.manual_seed(config.seed)
        self.config = config
        self.device = device
        self.version = version
        self.steps_done = 0
        self.skipped = 0
        self._skipped_in_a_row = 0
        self._rule, self._loss, self._clip = (
            rule(config.advantage),
            loss(config.loss),
            config.clip(),
        )
        self.model = _loaded(model_directory).to(device).eval()
        self._parameters = dict(self.model.named_parameters())
        self.optimiser = torch.optim.AdamW(
            self._parameters.values(),
            lr=config.lr,
            betas=config.betas,
            weight_decay=config.weight_decay,
        )

    def step(self, samples: Sequence[Sample], *, version: int | None = None) -> dict[str, float]:
        """Train on the samples once; the result is `version`, by default the next number.

        Raises BatchFailed where the samples cannot be computed with; nothing has changed then.
        Raises Unfit after `max_skipped` steps in a row whose loss or gradient was not finite.
        """
        if not samples:
            msg = "a step without samples; wait until the buffer gives a batch"
            raise Refused(msg)
        lr = self.config.lr_at(self.steps_done)
        try:
            metrics = self._prepare(samples)
        # Whatever a batch, or a user's plug-in on it, raises before a weight is touched.
        except Exception as error:
            self.optimiser.zero_grad(set_to_none=True)
            msg = f"{len(samples)} samples cannot be trained on: {type(error).__name__}: {error}"
            raise BatchFailed(msg) from error
        skip = not (isfinite(metrics["loss"]) and isfinite(metrics["grad_norm"]))
        metrics |= {"lr": lr, "skipped": float(skip)}
        self._apply(lr, skip)
        self.steps_done += 1
        self.version = self.version + 1 if version is None else version
        return metrics

    @property
    def vocabulary(self) -> int:
        """How many tokens the model has."""
        return int(self.model.config.vocab_size)

    @property
    def context(self) -> int:
        """How many positions the model has; 0 where its configuration does not say."""
        return int(getattr(self.model.config, "max_position_embeddings", 0))

    def canary(self) -> Canary:
        """The same ids for ever, spread over the vocabulary, scored at temperature 1."""
        size = self.model.config.vocab_size
        ids = [(7 * place + 1) % size for place in range(CANARY_TOKENS)]
        with torch.no_grad():
            logits_TV = self.model(torch.tensor([ids], device=self.device)).logits[0, :-1].float()
        log_p_TV = logits_TV.log_softmax(dim=-1)
        lp_T = log_p_TV.gather(1, torch.tensor(ids[1:], device=self.device)[:, None])[:, 0]
        return Canary(pack_ids(ids), pack_logprobs(lp_T.tolist()))

    def tensors(self) -> dict[str, RawTensor]:
        """The weights in order of names, tied tensors once."""
        return tensors_of(self.model)

    def state(self) -> LearnerState:
        """A copy of everything that the next step depends on."""
        moments = {
            f"{name}/{moment}": raw_of(self.optimiser.state[parameter][moment])
            for name, parameter in self._parameters.items()
            for moment in MOMENTS
            if parameter in self.optimiser.state
        }
        rng = {"torch": raw_of(torch.get_rng_state())}
        return LearnerState(
            self.steps_done, self.version, self.skipped, self.tensors(), moments, rng
        )

    def load(self, state: LearnerState) -> None:
        """Become what `state` was taken of."""
        load_tensors(self.model, state.weights)
        self.optimiser.state.clear()
        for name, parameter in self._parameters.items():
            if f"{name}/step" in state.optimiser:
                self.optimiser.state[parameter] = {
                    moment: tensor_of(state.optimiser[f"{name}/{moment}"]).to(
                        "cpu" if moment == "step" else self.device
                    )
                    for moment in MOMENTS
                }
        torch.set_rng_state(tensor_of(state.rng["torch"]))
        self.steps_done, self.version, self.skipped = state.step, state.version, state.skipped

    def _prepare(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Leave the clipped gradient in the parameters; return what is known of the batch."""
        config = self.config
        batch = make_batch(samples, self._rule, config.aggregate, config.aggregate_norm)
        cost, tokens = self._gradient(batch)
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.max_grad_norm))
        known = batch_metrics(batch, self.version) | token_metrics(tokens)
        return known | {"loss": cost, "grad_norm": norm}

    def _gradient(self, batch: Batch) -> tuple[float, list[np.ndarray]]:
        """Leave the batch's gradient in the parameters; return its cost and numbers per token."""
        self.optimiser.zero_grad(set_to_none=True)
        total = 0.0
        tokens: dict[int, np.ndarray] = {}
        for micro in micro_batches(batch, self.config.micro_batch_tokens, self.device):
            forward = self._forward(micro)
            costs = self._loss(
                forward.lp_BT,
                micro.behaviour_logprobs_BT,
                micro.advantage_B,
                micro.mask_BT,
                self._clip,
            )
            cost_BT = costs.cost_BT - self.config.entropy * forward.entropy_BT
            cost_M = cost_BT[forward.b_M, forward.t_M] * micro.weight_B[forward.b_M]
            cost = cost_M.sum()
            cost.backward()
            total += float(cost.detach())
            tokens |= numbers_per_token(micro, forward, costs)
        return total, [tokens[row] for row in sorted(tokens)]

    def _forward(self, micro: MicroBatch) -> Forward:
        """lp[b,t] = log softmax(logits[b,t−1] / temperature)[token[b,t]], 0 where mask is 0."""
        logits_BTV = self.model(
            input_ids=micro.token_ids_BT,
            attention_mask=micro.attention_mask_BT,
            position_ids=micro.position_ids_BT,
            use_cache=False,
        ).logits
        b_M, t_M = micro.mask_BT.nonzero(as_tuple=True)
        log_p_MV = (logits_BTV[b_M, t_M - 1].float() / self.config.temperature).log_softmax(dim=-1)
        lp_M = log_p_MV.gather(1, micro.token_ids_BT[b_M, t_M][:, None])[:, 0]
        empty_BT = torch.zeros_like(micro.behaviour_logprobs_BT)
        return Forward(
            empty_BT.index_put((b_M, t_M), lp_M),
            empty_BT.index_put((b_M, t_M), entropy(log_p_MV)),
            b_M,
            t_M,
        )

    def _apply(self, lr: float, skip: bool) -> None:
        if not skip:
            for group in self.optimiser.param_groups:
                group["lr"] = lr
            self.optimiser.step()
            self._skipped_in_a_row = 0
            return
        self.skipped += 1
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row >= self.config.max_skipped:
            msg = (
                f"{self._skipped_in_a_row} steps in a row had no finite loss and gradient, the "
                f"last at step {self.steps_done}; lower lr or max_grad_norm, or look for broken "
                "log-probabilities in the samples; the weights are those before these steps"
            )
            raise Unfit(msg)


def numbers_per_token(micro: MicroBatch, forward: Forward, costs: Costs) -> dict[int, np.ndarray]:
    """Per row of the batch float64 [5, n]: ratio, clipped, entropy, k3, log-ratio."""
    b_M, t_M = forward.b_M, forward.t_M
    lp_M, old_M = forward.lp_BT[b_M, t_M], micro.behaviour_logprobs_BT[b_M, t_M]
    numbers = [costs.ratio_BT[b_M, t_M], costs.clipped_BT[b_M, t_M], forward.entropy_BT[b_M, t_M]]
    numbers += [k3(lp_M, old_M), lp_M - old_M]
    table = torch.stack([n.detach().to("cpu", torch.float64) for n in numbers]).numpy()
    owner = b_M.cpu().numpy()
    return {row: table[:, owner == b] for b, row in enumerate(micro.rows)}


def token_metrics(tokens: Sequence[np.ndarray]) -> dict[str, float]:
    """Means over all sampled tokens, summed in log order."""
    ratio, clipped, entropies, kl, log_ratios = np.concatenate(tokens, axis=1)
    return {
        "ratio_mean": float(ratio.mean()),
        "ratio_max": float(ratio.max()),
        "clip_fraction": float(clipped.mean()),
        "entropy": float(entropies.mean()),
        "approx_kl": float(kl.mean()),
        "log_ratio_abs_max": float(np.abs(log_ratios).max()),
    }


def batch_metrics(batch: Batch, version_now: int) -> dict[str, float]:
    """What the batch was made of; staleness_i = v_now − min version of its sampled tokens."""
    staleness = version_now - batch.min_versions_N
    return {
        "reward_mean": float(batch.rewards_N.mean()),
        "reward_std": float(batch.rewards_N.std()),
        "advantage_mean": float(batch.advantages_N.mean()),
        "advantage_std": float(batch.advantages_N.std()),
        "advantage_abs_max": float(np.abs(batch.advantages_N).max()),
        "staleness_mean": float(staleness.mean()),
        "staleness_max": float(staleness.max()),
        "length_mean": float(batch.lengths_N.mean()),
        "tokens": float(batch.tokens),
        "trajectories": float(len(batch.lengths_N)),
        "sequences": float(len(batch.rows)),
    }


def _loaded(model_directory: str) -> torch.nn.Module:
    try:
        return AutoModelForCausalLM.from_pretrained(
            model_directory, local_files_only=True, dtype=torch.float32
        )
    except (OSError, ValueError) as error:
        msg = f"no causal language model at {model_directory!r}: {error}; give a local directory"
        raise Refused(msg) from error
