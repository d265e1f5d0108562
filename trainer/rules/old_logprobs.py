"""Rules for `old`, the trainer's own log-probability at sampling time.

- `none`: the engine's reported log-probabilities in place of the trainer's own.
- `recompute`: from one pass over the batch before it is trained on.
- `snapshot`: exact, from kept weights of every version that sampled tokens.
- `interrupt`: exact, since before each update running rollouts are interrupted and scored.
- `ewma`: those of a moving average of the weights, in place of old weights.
- `loglinear`: interpolated between engine and current network by a token's age, without a pass.
"""

from rollcall.schemas.rules import Need, NoOptions, Rule
from rollcall.trainer.rules.losses import Decay
from rollcall.trainer.rules.tokens import Old, Tokens, needed, where_known


def as_reported(tokens: Tokens, options: NoOptions) -> Old:
    """old = μ. Ours."""
    del options
    return Old(tokens.mu_BT)


AS_REPORTED = Rule("none", "old_logprobs", "ours", as_reported)


def recompute(tokens: Tokens, options: NoOptions) -> Old:
    """old = prox, the trainer's network at the step's start.

    Exact for tokens of the current version; for older tokens the ratio to μ also contains
    staleness. Source: verl's decoupled mode; HybridFlow, arXiv 2409.19256.
    """
    del options
    return Old(needed(tokens.prox_BT, Need.PROX), tokens.versions_BT == tokens.version)


RECOMPUTE = Rule(
    "recompute",
    "old_logprobs",
    "HybridFlow, arXiv 2409.19256, and verl",
    recompute,
    needs=frozenset({Need.PROX}),
    gives=frozenset({Need.OWN_OLD}),
)


def snapshot(tokens: Tokens, options: NoOptions) -> Old:
    """old = log π_v of the version v that sampled a token; μ if its weights are gone.

    Source: Missing Old Logits, exact routes.
    """
    del options
    return where_known(needed(tokens.snapshot_BT, Need.SNAPSHOT), tokens.mu_BT)


SNAPSHOT = Rule(
    "snapshot",
    "old_logprobs",
    "Missing Old Logits, exact routes",
    snapshot,
    needs=frozenset({Need.SNAPSHOT}),
    gives=frozenset({Need.OWN_OLD}),
)


def interrupt(tokens: Tokens, options: NoOptions) -> Old:
    """old = log π_v of the version v that sampled a token, noted before v was updated; else μ.

    Tokens of the current version are scored at the step's start. No old weights are kept or loaded;
    a token of older weights that arrived after their update is not exact. Source: Missing Old
    Logits, exact routes.
    """
    del options
    fresh_BT = tokens.versions_BT == tokens.version
    noted_BT = needed(tokens.noted_BT, Need.NOTED)
    known_BT = needed(tokens.prox_BT, Need.PROX).where(fresh_BT, noted_BT)
    return where_known(known_BT, tokens.mu_BT)


INTERRUPT = Rule(
    "interrupt",
    "old_logprobs",
    "Missing Old Logits, exact routes",
    interrupt,
    needs=frozenset({Need.NOTED, Need.PROX}),
    gives=frozenset({Need.OWN_OLD}),
)


def ewma(tokens: Tokens, options: Decay) -> Old:
    """old = log π_θ̄, with θ̄ of `ppo_ewma`.

    Source: Missing Old Logits, approximate route; Batch size-invariance, arXiv 2110.00641, §3.
    """
    del options
    return Old(needed(tokens.ewma_BT, Need.EWMA))


EWMA = Rule(
    "ewma",
    "old_logprobs",
    "Missing Old Logits; Batch size-invariance, arXiv 2110.00641, §3",
    ewma,
    Decay,
    frozenset({Need.EWMA}),
)


def loglinear(tokens: Tokens, options: NoOptions) -> Old:
    """prox ≈ μ + α·(lp − μ), α = (v_prox − v_b)/(v_θ − v_b), per token, without a gradient.

    v_b has sampled the token, v_prox is the version at the step's start, v_θ the one that the
    step makes, so that α is 0 for fresh tokens. Also provides `prox`. Source: AReaL's code.
    """
    del options
    age_BT = (tokens.version - tokens.versions_BT).clamp(min=0).to(tokens.mu_BT.dtype)
    alpha_BT = age_BT / (age_BT + 1)
    return Old(tokens.mu_BT + alpha_BT * (tokens.lp_BT.detach() - tokens.mu_BT))


LOGLINEAR = Rule(
    "loglinear",
    "old_logprobs",
    "AReaL, arXiv 2505.24298, its code",
    loglinear,
    gives=frozenset({Need.PROX}),
)
