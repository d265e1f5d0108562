"""Checks of combinations of settings: incompatible ones are refused before anything starts."""

from collections.abc import Mapping

from rollcall.schemas.errors import Refused
from rollcall.schemas.rules import Need
from rollcall.trainer.config.chosen_rules import DerivedValues
from rollcall.trainer.config.tables import groups_of

COUNTS_TOKENS = {
    "token_mean": True,
    "seq_mean_token_mean": False,
    "seq_mean_token_sum": False,
    "seq_mean_token_sum_norm": False,
}
"""True if an aggregate's denominator counts all tokens; else it counts trajectories with any."""


def require_fitting(config: DerivedValues) -> None:
    """Raise Refused for the first incompatible combination, with the reason and a remedy."""
    _batches(config)
    _costs(config)
    _one_reference(config)
    _corrected_successes(config)
    _what_is_cut_off(config)
    _budget(config)
    if config.interrupts and not config.cuts_off:
        msg = (
            "old_logprobs 'interrupt' scores what is cut off before a step, and nothing is; add "
            "over_provision above 1 or batch 'token_budget', or use snapshot"
        )
        raise Refused(msg)
    if config.recorded or config.share:
        _foreign(config)
    if config.exact:
        _exact(config)
    if config.stream:
        _streamed(config)
    if config.ranks > 1:
        _ranks(config)
    if config.lora is not None:
        _adapters(config)
    elif config.adapter_alone:
        msg = (
            "[policy] weights 'adapter' publishes an adapter alone, and none is trained; add "
            "[policy.lora], or publish 'full' or 'delta'"
        )
        raise Refused(msg)


def require_own_aggregate(config: DerivedValues) -> None:
    """Raise Refused if a rule is defined with another aggregate than the default.

    To be called only if the configuration does not name its aggregate: a named one is accepted.
    """
    for chosen in (config.rules.loss, config.rules.advantage):
        rule = chosen.rule
        if rule.aggregate not in ("", config.aggregate):
            norm = ", with the maximum of new tokens as aggregate_norm"
            norm = norm if rule.aggregate == "seq_mean_token_sum_norm" else ""
            msg = (
                f"{rule.kind} {rule.name!r} is of the aggregate {rule.aggregate!r} "
                f"({rule.source}), and none is given; write aggregate = {rule.aggregate!r}{norm}, "
                f"or aggregate = {config.aggregate!r} where that is meant"
            )
            raise Refused(msg)


def _batches(config: DerivedValues) -> None:
    """Check sizes of batches and groups against the rules."""
    if config.capacity_groups < config.groups_per_step:
        msg = (
            f"capacity_groups is {config.capacity_groups}, fewer than the groups_per_step "
            f"{config.groups_per_step}; no batch would ever be complete; raise it"
        )
        raise Refused(msg)
    if config.announce == "early" and config.save == "sync":
        msg = "announce 'early' is for checkpoints that are written later; set save to 'async'"
        raise Refused(msg)
    advantage = config.rules.advantage
    if config.group_size < 2 and advantage.needs(Need.GROUP):
        msg = f"group_size is {config.group_size}, but advantage {advantage.rule.name!r} compares"
        raise Refused(msg + " in groups; raise it to 2 or use batch_normalised")
    if config.group_size < 2 and any(each.needs(Need.GROUP) for each in config.rules.filters):
        msg = (
            f"group_size is {config.group_size}, and of groups of one the filters keep none: their "
            "members all earn the same; raise it to 2, or give filters ['none']"
        )
        raise Refused(msg)
    compares_groups = advantage.needs(Need.BATCH) and not advantage.needs(Need.GROUP)
    if config.groups_per_step < 2 and compares_groups and config.rules.completion.name == "groups":
        msg = (
            f"groups_per_step is {config.groups_per_step}, but advantage {advantage.rule.name!r} "
            "compares the groups of a batch; raise it to 2, or use grpo or rloo"
        )
        raise Refused(msg)


def _costs(config: DerivedValues) -> None:
    """Check the loss, its aggregate and the distillation against each other."""
    if config.aggregate == "seq_mean_token_sum_norm" and config.aggregate_norm < 1:
        msg = f"aggregate_norm is {config.aggregate_norm}; set it to the maximum of new tokens"
        raise Refused(msg)
    objective = config.rules.objective
    if objective.distil.needs(Need.TEACHER) and objective.loss.needs(Need.STEP):
        msg = (
            f"distill {objective.distil.rule.name!r} changes advantages token by token, but "
            f"loss {objective.loss.rule.name!r} looks at those of a whole step before it; "
            "use clip_higher"
        )
        raise Refused(msg)


def _exact(config: DerivedValues) -> None:
    others = {
        "packing": (config.packing, "rows"),
        "precision": (config.precision, "float32"),
        "ranks": (config.ranks, 1),
        "lora": ("set" if config.lora else "none", "none"),
    }
    for key, (found, needed) in others.items():
        if found != needed:
            msg = (
                f"exact needs {key} {needed!r}, and it is {found!r}: the engine's kernels have no "
                f"such shapes; set {key} so, or take exact out"
            )
            raise Refused(msg)


def _one_reference(config: DerivedValues) -> None:
    named = sorted(config.rules.references)
    if len(named) > 1:
        both = " and ".join(map(repr, named))
        msg = f"kl and advantage look at two references, {both}; name one directory for both"
        raise Refused(msg)


def _corrected_successes(config: DerivedValues) -> None:
    objective = config.rules.objective
    if config.success_pool and not (objective.corrects or objective.loss.needs(Need.MU)):
        msg = (
            f"success_pool is {config.success_pool}, and nothing corrects for the versions that "
            "its successes are of; add old_logprobs 'recompute' with correction 'tis', or use "
            "loss 'm2po' or 'decoupled_ppo'"
        )
        raise Refused(msg)


def _what_is_cut_off(config: DerivedValues) -> None:
    cutting = (
        "over_provision" if config.over_provision > 1 else f"batch {config.rules.completion.name!r}"
    )
    if config.cuts_off and config.on_stale == "wait":
        msg = (
            f"{cutting} ends what runs when a batch is there, on_stale 'wait' waits for it; give "
            "on_stale 'drop' or 'weight'"
        )
        raise Refused(msg)
    if config.cuts_off and not (config.max_staleness or config.mask_continued):
        msg = (
            f"{cutting} goes on with rollouts begun by older weights, which max_staleness 0 drops; "
            "raise it to at least 1, or set mask_continued"
        )
        raise Refused(msg)


def _budget(config: DerivedValues) -> None:
    """Check a batch that does not count groups: it cannot contain a share of groups."""
    rule = config.rules.completion
    if rule.name == "groups":
        return
    if config.replay_ratio:
        msg = (
            f"batch {rule.name!r} takes as many groups as it takes, and replay_ratio is a share of "
            "groups_per_step; give batch 'groups', or replay_ratio 0"
        )
        raise Refused(msg)
    if config.over_provision > 1 and Need.CUT_OFF in rule.needs:
        msg = (
            f"batch {rule.name!r} keeps max_running rollouts started, over_provision so many times "
            "groups_per_step groups; give one of them"
        )
        raise Refused(msg)


def _foreign(config: DerivedValues) -> None:
    """Check groups of other runs: they have no versions of ours, and shared text has no μ."""
    objective = config.rules.objective
    tables = {"[learner.recorded]": config.recorded, "[learner.share]": config.share}
    names = " and ".join(name for name, rule in tables.items() if rule)
    _require_own_groups(config)
    reasons = {
        "stream: what others sampled is not on-policy; take it out": config.stream,
        "old_logprobs 'interrupt', which notes what weights of ours have sampled; use recompute": (
            config.interrupts
        ),
        f"batch {config.rules.completion.name!r}, which counts no groups; use groups": (
            config.rules.completion.name != "groups"
        ),
    }
    _refuse_any(names, reasons)
    if config.recorded and not (objective.corrects or objective.loss.needs(Need.MU)):
        msg = (
            "[learner.recorded] brings what another policy has sampled, and nothing corrects for "
            "that; add old_logprobs 'recompute' with correction 'tis', or use loss 'm2po' or "
            "'decoupled_ppo'"
        )
        raise Refused(msg)
    if config.share:
        reasons = {
            "old_logprobs 'ewma': text has no log-probabilities of then; use recompute or none": (
                objective.old.needs(Need.EWMA)
            ),
            "distill: no teacher has scored text of others; take it out": bool(
                config.rules.teacher
            ),
            "ranks above 1: one process has to look at text before it is shared out": (
                config.ranks > 1
            ),
        }
        _refuse_any("[learner.share]", reasons)


def _require_own_groups(config: DerivedValues) -> None:
    """Raise Refused if a batch would contain no new group of the run itself."""
    groups, own = config.groups_per_step, config.fresh_groups
    for rule in (config.recorded, config.share):
        own -= groups_of(rule.ratio, groups) if rule else 0
    if own < 1:
        msg = (
            f"of the {groups} groups of a step none would be new ones of the run; make the ratios "
            "of replay_ratio, recorded and share smaller"
        )
        raise Refused(msg)


def _streamed(config: DerivedValues) -> None:
    """Check streaming: it excludes rules over several groups, and off-policy data."""
    advantage, loss = config.rules.advantage, config.rules.loss
    rules = [advantage, config.rules.exploration, *config.rules.turn_filters]
    wide = next((rule.rule for rule in rules if rule.needs(Need.BATCH)), None)
    reasons = {
        f"max_staleness {config.max_staleness}: only 0 is on-policy": config.max_staleness > 0,
        "several epochs or minibatches: there is one update": config.epochs > 1
        or config.minibatch > 0,
        "replay_ratio or success_pool: what is trained on again is not on-policy": bool(
            config.replay_ratio or config.success_pool
        ),
        "what is cut off and gone on with: it is not on-policy": config.cuts_off,
        f"{wide.kind} {wide.name!r}, which looks at more than one group; for an advantage grpo, "
        "dr_grpo and rloo do not" if wide else "": wide is not None,
        f"loss {loss.rule.name!r}, which looks at all tokens of a step; use clip_higher": (
            loss.needs(Need.STEP)
        ),
        f"aggregate {config.aggregate!r}, whose denominator is not known; use one of "
        f"{', '.join(COUNTS_TOKENS)}": config.aggregate not in COUNTS_TOKENS,
    }  # fmt: skip
    _refuse_any("stream", reasons)


def _ranks(config: DerivedValues) -> None:
    name = config.rules.advantage.rule.name
    reasons = {
        f"advantage {name!r}, which takes the gradient of each trajectory by itself, of which a "
        "rank has only its part; use rloo": Need.NORMS in config.rules.needed_scores,
        "stream: groups are too few to share out; take it out": config.stream,
        "old_logprobs 'interrupt', whose notes one process takes; use recompute": config.interrupts,
    }
    _refuse_any(f"ranks {config.ranks}", reasons)


def _adapters(config: DerivedValues) -> None:
    """Check adapters: rules that need other full weights, such as an average, are excluded."""
    out, needed = "take one of them out", config.rules.needed_scores
    reasons = {
        f"what needs 'ewma', an average of the weights; {out}": Need.EWMA in needed,
        f"what needs 'snapshot', the weights of then; {out}": Need.SNAPSHOT in needed,
    }
    _refuse_any("[policy.lora]", reasons)


def _refuse_any(choice: str, reasons: Mapping[str, bool]) -> None:
    """Raise Refused for the first reason that holds."""
    for reason, holds in reasons.items():
        if holds:
            msg = f"{choice} does not go with {reason}"
            raise Refused(msg)
