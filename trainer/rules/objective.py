"""The objective of each token without the entropy bonus: a compatible set of rules."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from rollcall.schemas.errors import Refused
from rollcall.schemas.rules import ChosenRule, Need
from rollcall.trainer.rules.corrections import NO_CORRECTION, whole_sequences
from rollcall.trainer.rules.kl import NO_REFERENCE
from rollcall.trainer.rules.tokens import (
    Correction,
    Costs,
    Distil,
    KlEstimate,
    Loss,
    OldLogprobs,
    Tokens,
    k3,
    needed,
)


@dataclass(frozen=True, slots=True)
class Objective:
    """Loss times correction, plus the KL penalty to the reference."""

    loss: ChosenRule[Loss]
    distil: ChosenRule[Distil]
    old: ChosenRule[OldLogprobs]
    correction: ChosenRule[Correction]
    kl: ChosenRule[KlEstimate]

    def __post_init__(self) -> None:
        if self.corrects:
            self._correction_fits()
        if len({*self._decays()}) > 1:
            msg = "old_logprobs 'ewma' and the loss name two decays of one average; give the same"
            raise Refused(msg)

    @property
    def corrects(self) -> bool:
        return self.correction.rule is not NO_CORRECTION

    @property
    def needs(self) -> frozenset[Need]:
        """The quantities that an extra pass has to provide before the gradient."""
        rules = (self.loss.rule, self.correction.rule, self.kl.rule, self.old.rule)
        return frozenset().union(*(rule.needs for rule in rules)) - self.old.rule.gives

    @property
    def decay(self) -> float:
        """The decay of the moving average of the weights."""
        return next(self._decays())

    def __call__(self, tokens: Tokens) -> tuple[Costs, dict[str, Tensor]]:
        """Return costs [B,T] with all terms, and metrics per token by name."""
        if self.distil.needs(Need.TEACHER):
            tokens = replace(tokens, advantage_BT=self.distil(tokens))
        tokens, metrics = self._with_old(tokens)
        costs: Costs = self.loss(tokens)
        if self.corrects:
            weight_BT = self.correction(tokens).detach()
            cost_BT = (weight_BT * costs.cost_BT).masked_fill(weight_BT == 0, 0)
            costs = replace(costs, cost_BT=cost_BT)
            metrics |= {"correction_weight": weight_BT, "correction_masked": weight_BT == 0}
        if self.kl.rule is not NO_REFERENCE:
            leaving_BT = self.kl.options.weight * self.kl(tokens)
            costs = replace(costs, cost_BT=costs.cost_BT + leaving_BT)
            metrics["reference_kl"] = k3(needed(tokens.ref_BT, Need.REF), tokens.lp_BT.detach())
        return costs, metrics

    def _with_old(self, tokens: Tokens) -> tuple[Tokens, dict[str, Tensor]]:
        old = self.old(tokens)
        tokens = replace(tokens, old_BT=old.old_BT, exact_BT=old.exact_BT)
        if self.old.gives(Need.PROX) and tokens.prox_BT is None:
            tokens = replace(tokens, prox_BT=old.old_BT)
        return tokens, {} if old.exact_BT is None else {"old_exact": old.exact_BT}

    def _correction_fits(self) -> None:
        name, loss = self.correction.rule.name, self.loss.rule.name
        if self.correction.needs(Need.OWN_OLD) and not self.old.gives(Need.OWN_OLD):
            msg = (
                f"correction {name!r} compares the trainer's own network with the engine, and "
                f"old_logprobs {self.old.rule.name!r} has none of its own; use recompute"
            )
            raise Refused(msg)
        if self.loss.needs(Need.MU):
            msg = (
                f"loss {loss!r} takes its ratio over the engine's own log-probabilities, so that "
                f"correction {name!r} would count staleness twice; use clip_higher, or none"
            )
            raise Refused(msg)
        if self.loss.needs(Need.SEQUENCE) and not whole_sequences(self.correction.options):
            msg = (
                f"loss {loss!r} has one ratio for a sequence, correction {name!r} one for each "
                "token; use mis or tis with level = 'geometric'"
            )
            raise Refused(msg)

    def _decays(self) -> Iterator[float]:
        return (each.options.decay for each in (self.loss, self.old) if each.needs(Need.EWMA))
