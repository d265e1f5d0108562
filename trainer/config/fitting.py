"""Combinations of rules and settings that do not work, each as a reason with a remedy.

Settings of one table are checked in it; rules are looked up, so these checks need all of them.
"""

from collections.abc import Iterator, Mapping

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


def misfits(config: DerivedValues) -> Iterator[str]:
    """Yield the reasons why a configuration cannot work."""
    yield from _batches(config)
    yield from _costs(config)
    yield from _references_and_successes(config)
    yield from _cut_off(config)
    if config.rules.completion.name != "groups":
        yield from _budget(config)
    if config.interrupts and not config.cuts_off:
        yield (
            "old_logprobs 'interrupt' scores what is cut off before a step, and nothing is; add "
            "over_provision above 1 or batch 'token_budget', or use snapshot"
        )
    if config.recorded or config.share:
        yield from _borrowed(config)
    if config.computation.exact:
        yield from _exact(config)
    if config.stream:
        yield from _streamed(config)
    if config.computation.ranks > 1:
        yield from _ranks(config)
    yield from _adapters(config)


def other_aggregates(config: DerivedValues) -> Iterator[str]:
    """Yield the rules that are defined with another aggregate than the default.

    To be called only if the configuration does not name its aggregate: a named one is accepted.
    """
    for chosen in (config.rules.loss, config.rules.advantage):
        rule = chosen.rule
        if rule.aggregate not in ("", config.aggregate):
            norm = ", with the maximum of new tokens as aggregate_norm"
            norm = norm if rule.aggregate == "seq_mean_token_sum_norm" else ""
            yield (
                f"{rule.kind} {rule.name!r} is of the aggregate {rule.aggregate!r} "
                f"({rule.source}), and none is given; write aggregate = {rule.aggregate!r}{norm}, "
                f"or aggregate = {config.aggregate!r} where that is meant"
            )


def _batches(config: DerivedValues) -> Iterator[str]:
    """Compare the sizes of batches and groups with the rules."""
    groups, advantage = config.groups, config.rules.advantage
    if groups.size < 2 and advantage.needs(Need.GROUP):
        yield (
            f"group_size is {groups.size}, but advantage {advantage.rule.name!r} compares in "
            "groups; raise it to 2 or use batch_normalised"
        )
    if groups.size < 2 and any(each.needs(Need.GROUP) for each in config.rules.filters):
        yield (
            f"group_size is {groups.size}, and of groups of one the filters keep none: their "
            "members all earn the same; raise it to 2, or give filters ['none']"
        )
    compares_groups = advantage.needs(Need.BATCH) and not advantage.needs(Need.GROUP)
    if groups.per_step < 2 and compares_groups and config.rules.completion.name == "groups":
        yield (
            f"groups_per_step is {groups.per_step}, but advantage {advantage.rule.name!r} "
            "compares the groups of a batch; raise it to 2, or use grpo or rloo"
        )


def _costs(config: DerivedValues) -> Iterator[str]:
    """Compare the loss, its aggregate and the distillation with each other."""
    if config.aggregate == "seq_mean_token_sum_norm" and config.aggregate_norm < 1:
        yield f"aggregate_norm is {config.aggregate_norm}; set it to the maximum of new tokens"
    objective = config.rules.objective
    if objective.distil.needs(Need.TEACHER) and objective.loss.needs(Need.STEP):
        yield (
            f"distill {objective.distil.rule.name!r} changes advantages token by token, but "
            f"loss {objective.loss.rule.name!r} looks at those of a whole step before it; "
            "use clip_higher"
        )


def _references_and_successes(config: DerivedValues) -> Iterator[str]:
    named = sorted(config.rules.references)
    if len(named) > 1:
        both = " and ".join(map(repr, named))
        yield f"kl and advantage look at two references, {both}; name one directory for both"
    if config.replay.pool and not _corrects(config):
        yield (
            f"success_pool is {config.replay.pool}, and nothing corrects for the versions that "
            "its successes are of; add old_logprobs 'recompute' with correction 'tis', or use "
            "loss 'm2po' or 'decoupled_ppo'"
        )


def _corrects(config: DerivedValues) -> bool:
    """Return True if a rule corrects for tokens of other versions."""
    return config.rules.objective.corrects or config.rules.objective.loss.needs(Need.MU)


def _cut_off(config: DerivedValues) -> Iterator[str]:
    if not config.cuts_off:
        return
    groups, staleness = config.groups, config.staleness
    budget = f"batch {config.rules.completion.name!r}"
    cutting = "over_provision" if groups.over_provision > 1 else budget
    if staleness.on_stale == "wait":
        yield (
            f"{cutting} ends what runs when a batch is there, on_stale 'wait' waits for it; give "
            "on_stale 'drop' or 'weight'"
        )
    if not (staleness.bound or groups.mask_continued):
        yield (
            f"{cutting} goes on with rollouts begun by older weights, which max_staleness 0 drops; "
            "raise it to at least 1, or set mask_continued"
        )


def _budget(config: DerivedValues) -> Iterator[str]:
    """Check a batch that does not count groups: it cannot contain a share of groups."""
    rule = config.rules.completion
    if config.replay.ratio:
        yield (
            f"batch {rule.name!r} takes as many groups as it takes, and replay_ratio is a share of "
            "groups_per_step; give batch 'groups', or replay_ratio 0"
        )
    if config.groups.over_provision > 1 and Need.CUT_OFF in rule.needs:
        yield (
            f"batch {rule.name!r} keeps max_running rollouts started, over_provision so many times "
            "groups_per_step groups; give one of them"
        )


def _borrowed(config: DerivedValues) -> Iterator[str]:
    """Check groups of other runs: they have no versions of ours, and shared text has no μ."""
    objective = config.rules.objective
    tables = {"[learner.recorded]": config.recorded, "[learner.share]": config.share}
    yield from _own_groups(config)
    yield from _excluded(
        " and ".join(name for name, rule in tables.items() if rule),
        {
            "stream: what others sampled is not on-policy; take it out": config.stream,
            "old_logprobs 'interrupt', which notes what weights of ours have sampled; use "
            "recompute": config.interrupts,
            f"batch {config.rules.completion.name!r}, which counts no groups; use groups": (
                config.rules.completion.name != "groups"
            ),
        },
    )
    if config.recorded and not _corrects(config):
        yield (
            "[learner.recorded] brings what another policy has sampled, and nothing corrects for "
            "that; add old_logprobs 'recompute' with correction 'tis', or use loss 'm2po' or "
            "'decoupled_ppo'"
        )
    if config.share:
        reasons = {
            "old_logprobs 'ewma': text has no log-probabilities of then; use recompute or none": (
                objective.old.needs(Need.EWMA)
            ),
            "distill: no teacher has scored text of others; take it out": bool(
                config.rules.teacher
            ),
            "ranks above 1: one process has to look at text before it is shared out": (
                config.computation.ranks > 1
            ),
        }
        yield from _excluded("[learner.share]", reasons)


def _own_groups(config: DerivedValues) -> Iterator[str]:
    """Check that a batch contains new groups of the run itself."""
    groups, own = config.groups.per_step, config.fresh_groups
    own -= sum(groups_of(rule.ratio, groups) for rule in (config.recorded, config.share) if rule)
    if own < 1:
        yield (
            f"of the {groups} groups of a step none would be new ones of the run; make the ratios "
            "of replay_ratio, recorded and share smaller"
        )


def _exact(config: DerivedValues) -> Iterator[str]:
    computation = config.computation
    others = {
        "packing": (computation.packing, "rows"),
        "precision": (computation.precision, "float32"),
        "ranks": (computation.ranks, 1),
        "lora": ("set" if config.lora else "none", "none"),
    }
    for key, (found, needed) in others.items():
        if found != needed:
            yield (
                f"exact needs {key} {needed!r}, and it is {found!r}: the engine's kernels have no "
                f"such shapes; set {key} so, or take exact out"
            )


def _streamed(config: DerivedValues) -> Iterator[str]:
    """Check streaming: it excludes rules over several groups, and off-policy data."""
    rules, staleness, optimiser = config.rules, config.staleness.bound, config.optimiser
    chosen = [rules.advantage, rules.exploration, *rules.turn_filters]
    wide = next((rule.rule for rule in chosen if rule.needs(Need.BATCH)), None)
    reasons = {
        f"max_staleness {staleness}: only 0 is on-policy": staleness > 0,
        "several epochs or minibatches: there is one update": optimiser.epochs > 1
        or optimiser.minibatch > 0,
        "replay_ratio or success_pool: what is trained on again is not on-policy": bool(
            config.replay.ratio or config.replay.pool
        ),
        "what is cut off and gone on with: it is not on-policy": config.cuts_off,
        f"{wide.kind} {wide.name!r}, which looks at more than one group; for an advantage grpo, "
        "dr_grpo and rloo do not" if wide else "": wide is not None,
        f"loss {rules.loss.rule.name!r}, which looks at all tokens of a step; use clip_higher": (
            rules.loss.needs(Need.STEP)
        ),
        f"aggregate {config.aggregate!r}, whose denominator is not known; use one of "
        f"{', '.join(COUNTS_TOKENS)}": config.aggregate not in COUNTS_TOKENS,
    }  # fmt: skip
    yield from _excluded("stream", reasons)


def _ranks(config: DerivedValues) -> Iterator[str]:
    name = config.rules.advantage.rule.name
    reasons = {
        f"advantage {name!r}, which takes the gradient of each trajectory by itself, of which a "
        "rank has only its part; use rloo": Need.NORMS in config.rules.needed_scores,
        "stream: groups are too few to share out; take it out": config.stream,
        "old_logprobs 'interrupt', whose notes one process takes; use recompute": config.interrupts,
    }
    yield from _excluded(f"ranks {config.computation.ranks}", reasons)


def _adapters(config: DerivedValues) -> Iterator[str]:
    """Check adapters: rules that need other full weights, such as an average, are excluded."""
    if config.lora is not None:
        needed, out = config.rules.needed_scores, "take one of them out"
        reasons = {
            f"what needs 'ewma', an average of the weights; {out}": Need.EWMA in needed,
            f"what needs 'snapshot', the weights of then; {out}": Need.SNAPSHOT in needed,
        }
        yield from _excluded("[policy.lora]", reasons)
    elif config.adapter_alone:
        yield (
            "[policy] weights 'adapter' publishes an adapter alone, and none is trained; add "
            "[policy.lora], or publish 'full' or 'delta'"
        )


def _excluded(choice: str, reasons: Mapping[str, bool]) -> Iterator[str]:
    """Yield the reasons that hold."""
    return (f"{choice} does not go with {reason}" for reason, holds in reasons.items() if holds)
