"""What a learner does, in plain values; the defaults are the CPU demonstration's.

Whatever cannot work is refused here, by key and value, before a model is loaded.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Self

import orjson

from schemas import names
from schemas.errors import Refused
from schemas.messages import UNFINISHED
from schemas.rules import Choice, Chosen, Rule, choose
from trainer.adapters import Lora
from trainer.arithmetic import PRECISIONS
from trainer.catalogue import (
    ADVANTAGES,
    COMPLETIONS,
    CORRECTIONS,
    DISTILS,
    EXPLORATIONS,
    FILTERS,
    KINDS,
    KLS,
    LOSSES,
    OLDS,
    SHAPINGS,
    STEP_SIZES,
)
from trainer.completion.waiting import Completion
from trainer.filters.group_filter import Filter
from trainer.fitting import require_fitting
from trainer.foreign import Recorded, Share
from trainer.objective import Objective
from trainer.replay import ReplayRule
from trainer.rewards import AdvantageRule, Exploration, Shaping
from trainer.samples import LIMITS, Curation
from trainer.schedules import SCHEDULES
from trainer.step_sizes.pace import StepSize
from trainer.tokens import Distil, Loss


@dataclass(frozen=True, slots=True)
class LearnerConfig:
    """Rules go by name or as `module:function`; a table with `name` gives one its options too."""

    advantage: str | Choice = "batch_normalised"
    loss: str | Choice = "clip_higher"
    exploration: str | Choice = "even"
    """Whose entropy is worth how much; `entropy` is what most get."""
    shaping: tuple[str | Choice, ...] = ()
    """What is done to totals before advantages are made of them, one after the other."""
    clip_low: float | None = None
    """The options `low`, `high` and `dual` of a loss that clips, as they were first spelled."""
    clip_high: float | None = None
    clip_dual: float = 0.0
    """0 is off."""
    aggregate: str = "token_mean"
    aggregate_norm: int = 0
    """The run's maximum of new tokens, for `seq_mean_token_sum_norm`."""
    entropy: float = 0.01
    """Weight of the entropy bonus."""
    lr: float = 1e-3
    schedule: str = "linear"
    steps: int = 120
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    max_staleness: int = 2
    """In versions: a group with a token older than this is dropped."""
    groups_per_step: int = 8
    batch: str | Choice = "groups"
    """What makes a batch whole: `groups_per_step` groups, or so many tokens (`token_budget`)."""
    group_size: int = 8
    capacity_groups: int = 64
    """Complete groups that may wait before the trainer pauses its partitions."""
    filters: tuple[str | Choice, ...] = ("none",)
    missing: str = "drop"
    order: str = "edf"
    """Which complete group goes first: the one that is stale next, or (`fifo`) that came first."""
    on_stale: str = "drop"
    """`drop`; `wait`: take no step that would make a running group stale; `weight`: let older
    groups count for less."""
    stale_wait_s: float = 60.0
    """How long `wait` holds a step back, in seconds of the log."""
    stale_wait_steps: int = 0
    """So many more batches may pile up meanwhile; 0: any number."""
    replay_ratio: float = 0.0
    """The share of a batch's groups that were used before, the last used first; 0: none."""
    replay_capacity: int = 64
    """Groups that are kept for it."""
    replay_max_age: int = 8
    """In versions: what has an older token is not used again."""
    replay_max_uses: int = 4
    """How often a group is trained on at most."""
    success_pool: int = 0
    """Of so many tasks the latest success is kept, and given to groups of its task that wholly
    fail; 0: none. Its versions and log-probabilities are its own: choose a correction."""
    recorded: Recorded | None = None
    """`[learner.recorded]`: a share of a batch's groups that an earlier run has recorded."""
    share: Share | None = None
    """`[learner.share]`: a share of a batch's groups that other runs are trained on, as text."""
    temperature: float = 1.0
    """Of the samples; the trainer divides its logits by it."""
    seed: int = 0
    micro_batch_tokens: int = 16384
    packing: str = "rows"
    """`rows` side by side; or `shared`: what rows begin with together is computed once, and logits
    only where something was sampled; or `packed`: besides, what shares nothing lies end to end in
    place of being padded. They are the same to 5e-7, not to the bit."""
    precision: str = "float32"
    """Of the model's products; `bfloat16` makes them smaller and, where the device is made for it,
    quicker. Weights, gradients and moments are float32."""
    exact: bool = False
    """Whether log-probabilities are the engine's to the bit, on a CPU: every token in a pass over
    its own row, of a width that its place decides, in trainer and engine."""
    ranks: int = 1
    """Processes that the learner is, each with its part of the weights and of every batch."""
    lora: Lora | None = None
    """`[policy.lora]` of the recipe: adapters are trained in place of the weights."""
    adapter_alone: bool = False
    """Whether the adapters are announced and saved, and not what they come to: `[policy] weights =
    "adapter"` of the recipe."""
    gradient_checkpointing: bool = False
    """Whether layers are computed again on the way back: the memory of one in place of all."""
    max_skipped: int = 3
    """So many steps in a row without a finite gradient end the process."""
    epochs: int = 1
    """How often a batch is gone through in one step."""
    minibatch: int = 0
    """Trajectories to one update of the weights; 0: all of the batch."""
    distill: str | Choice = "none"
    """What a teacher's token scores add to the advantage."""
    old_logprobs: str | Choice = "none"
    """Where the trainer's own log-probabilities at sampling time come from."""
    correction: str | Choice = "none"
    """What a cost weighs where the engine's log-probabilities are not the trainer's."""
    kl: str | Choice = "none"
    """What leaving a frozen reference costs."""
    step_size: str | Choice = "scheduled"
    """How large a step is beside what the schedule says."""
    checkpoint_keep_every: int = 20
    """Besides the newest checkpoints the first stays, and one in so many versions; 0 keeps none.

    One takes 12 bytes a parameter (weights and two moments in float32), so a run of 120 steps keeps
    seven: 35 MB where there are 413,184 parameters, 42 GB where there are 500 million.
    """

    stream: bool = False
    """Whether gradients are added as groups complete, and applied when the batch is whole."""
    save: str = "sync"
    """`async`: a step's checkpoint is written while the next batch is trained."""
    announce: str = "durable"
    """When a version is announced: when its checkpoint is `durable`, or `early`, when its weights
    are: then a crash in between abandons it."""
    over_provision: float = 1.0
    """So many times `groups_per_step` groups are kept started; when a batch is there all others are
    cancelled, and gone on with first in the next round."""
    mask_continued: bool = False
    """Whether what was sampled before a rollout was gone on with is only read, not trained on."""
    retention: int = 0
    """How often a rollout may be gone on with before it is dropped; 0 is no bound."""
    redundancy: int = 0
    """So many members more are started in each group: the first `group_size` that can be trained
    on, in log order, are its members, and the others are cancelled."""

    def __post_init__(self) -> None:
        for key, known in KINDS.items():
            value = getattr(self, key)
            for each in value if isinstance(value, tuple) else (value,):
                choose(key, each, known)
        for key, (holds, remedy) in BOUNDS.items():
            value = getattr(self, key)
            if value is not None and not (isfinite(value) and holds(value)):
                msg = f"{key} is {value!r}; {remedy}"
                raise Refused(msg)
        self._fits_together()

    def _fits_together(self) -> None:
        if not all(0 <= beta < 1 for beta in self.betas) or len(self.betas) != 2:
            msg = f"betas is {self.betas!r}; give two numbers in [0, 1), such as (0.9, 0.95)"
            raise Refused(msg)
        if self.capacity_groups < self.groups_per_step:
            msg = (
                f"capacity_groups is {self.capacity_groups}, fewer than the groups_per_step "
                f"{self.groups_per_step}; no batch would ever be complete; raise it"
            )
            raise Refused(msg)
        for key, known in NAMED.items():
            if getattr(self, key) not in known:
                raise names.unknown(key, getattr(self, key), known)
        for key in SWITCHES:
            if not isinstance(getattr(self, key), bool):
                msg = f"{key} is {getattr(self, key)!r}; give true or false"
                raise Refused(msg)
        if self.announce == "early" and self.save == "sync":
            msg = "announce 'early' is for checkpoints that are written later; set save to 'async'"
            raise Refused(msg)
        self.objective()
        advantage = self.advantage_rule()
        if self.group_size < 2 and advantage.needs("group"):
            msg = f"group_size is {self.group_size}, but advantage {advantage.rule.name!r} compares"
            raise Refused(msg + " in groups; raise it to 2 or use batch_normalised")
        if self.aggregate == "seq_mean_token_sum_norm" and self.aggregate_norm < 1:
            msg = f"aggregate_norm is {self.aggregate_norm}; set it to the maximum of new tokens"
            raise Refused(msg)
        if self.distill_rule().needs("teacher") and self.loss_rule().needs("step"):
            msg = (
                f"distill {self.distill_rule().rule.name!r} changes advantages token by token, but "
                f"loss {self.loss_rule().rule.name!r} looks at those of a whole step before it; "
                "use clip_higher"
            )
            raise Refused(msg)
        require_fitting(self)
        self.curation("", "")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """From a configuration file's section; a key that is none is refused. Raises Refused."""
        known = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in known:
                raise names.unknown("key of the learner", key, known)
        given = {key: _written(key, value) for key, value in values.items()}
        return cls(**given)  # type: ignore[arg-type]

    def advantage_rule(self) -> Chosen[AdvantageRule]:
        """What turns rewards into advantages, with its options."""
        return choose("advantage", self.advantage, ADVANTAGES)

    def loss_rule(self) -> Chosen[Loss]:
        """The loss with its options, however they are spelled. Raises Refused."""
        choice = Choice.of("loss", self.loss)
        spelled = {"low": self.clip_low, "high": self.clip_high, "dual": self.clip_dual or None}
        flat = {key: value for key, value in spelled.items() if value is not None}
        twice = sorted(flat.keys() & dict(choice.options))
        if twice:
            msg = (
                f"clip_{twice[0]} and {twice[0]!r} of the table of the loss are the same; give one"
            )
            raise Refused(msg)
        merged = Choice(choice.name, tuple(sorted((dict(choice.options) | flat).items())))
        return choose("loss", merged, LOSSES)

    def distill_rule(self) -> Chosen[Distil]:
        """What a teacher adds to advantages, with its options. Raises Refused."""
        return choose("distill", self.distill, DISTILS)

    def objective(self) -> Objective:
        """What is minimised for each token. Raises Refused for rules that do not fit together."""
        return Objective(
            self.loss_rule(),
            self.distill_rule(),
            choose("old_logprobs", self.old_logprobs, OLDS),
            choose("correction", self.correction, CORRECTIONS),
            choose("kl", self.kl, KLS),
        )

    def step_size_rule(self) -> Chosen[StepSize]:
        """What a step's learning rate is multiplied by."""
        return choose("step_size", self.step_size, STEP_SIZES)

    @property
    def teacher(self) -> str:
        """What the scorer's name begins with whose token scores are needed; empty for none."""
        chosen = self.distill_rule()
        return str(getattr(chosen.options, "scorer", "")) if chosen.needs("teacher") else ""

    def exploration_rule(self) -> Chosen[Exploration]:
        """What gives each trajectory's entropy its weight."""
        return choose("exploration", self.exploration, EXPLORATIONS)

    @property
    def looks(self) -> frozenset[str]:
        """What some rule has to know of a batch's tokens before its gradient."""
        rules = [self.step_size_rule(), self.advantage_rule(), self.exploration_rule()]
        rules += self.turn_filters()
        heard = {"prox"} if self.share else set[str]()
        return self.objective().needs.union(heard, *(rule.everything_needed for rule in rules))

    @property
    def values_look(self) -> bool:
        """Whether advantages or bonuses wait for a look at the tokens of the whole batch."""
        rules = (self.advantage_rule(), self.exploration_rule())
        return any(rule.everything_needed & LOOKS for rule in rules)

    @property
    def reference(self) -> str:
        """The directory of the frozen reference; empty for what the policy began as."""
        return next(iter(self.references()), "")

    def references(self) -> set[str]:
        """Directories that rules name which look at a reference."""
        rules = (self.objective().kl, self.advantage_rule())
        return {getattr(each.options, "directory", "") for each in rules if each.needs("ref")}

    def turn_filters(self) -> list[Chosen[Filter]]:
        """Filters that choose among the turns of a batch; the others choose among groups."""
        chosen = [choose("filters", each, FILTERS) for each in self.filters]
        return [each for each in chosen if each.needs("entropy")]

    def shaping_rules(self) -> list[Chosen[Shaping]]:
        """What is done to totals, in order."""
        return [choose("shaping", each, SHAPINGS) for each in self.shaping]

    def replay(self) -> ReplayRule:
        """How much is trained on again."""
        return ReplayRule(
            self.replay_ratio,
            self.replay_capacity,
            self.replay_max_age,
            self.replay_max_uses,
            self.success_pool,
        )

    @property
    def completion(self) -> Rule[Completion]:
        """What says that a batch is whole."""
        return choose("batch", self.batch, COMPLETIONS).rule

    @property
    def cuts_off(self) -> bool:
        """Whether what runs when a batch is whole is cancelled, and gone on with."""
        return self.over_provision > 1 or self.refills

    @property
    def interrupts(self) -> bool:
        """Whether a step waits until what it cuts off has ended, so that it can be scored."""
        return self.objective().old.needs("noted")

    @property
    def refills(self) -> bool:
        """Whether so many rollouts are kept in flight, whatever has ended."""
        return "cut_off" in self.completion.needs

    @property
    def fresh_groups(self) -> int:
        """How many groups of a step are trained on for the first time."""
        return self.replay().fresh(self.groups_per_step)

    def curation(
        self, run_id: str, policy_id: str, abandoned: tuple[tuple[int, int], ...] = ()
    ) -> Curation:
        """What a buffer in front of this learner admits."""
        return Curation(
            run_id,
            policy_id,
            max_staleness=self.max_staleness,
            missing=self.missing,
            redundancy=self.redundancy,
            order=self.order,
            continues=UNFINISHED if self.cuts_off else "",
            retention=self.retention,
            on_stale=self.on_stale,
            stale_wait_s=self.stale_wait_s,
            stale_wait_steps=self.stale_wait_steps,
            filters=self.filters,
            batch=self.batch,
            needs_group=self.advantage_rule().needs("group"),
            temperature=self.temperature,
            capacity_groups=self.capacity_groups,
            abandoned=abandoned,
            admits_limits=self._admitted_limits(),
            teacher=self.teacher,
            recorded=self.recorded,
            share=self.share,
        )

    def _admitted_limits(self) -> frozenset[str]:
        """Ends at a limit that some shaping rule says the worth of."""
        told = any(rule.needs("limits") for rule in self.shaping_rules())
        return LIMITS if told else frozenset()

    def lr_at(self, done: int) -> float:
        factor = choose("schedule", self.schedule, SCHEDULES).rule.function
        return self.lr * factor(done, self.steps)

    def scoring_versions(self, version: int) -> range:
        """Versions whose weights may have to score tokens once `version` is made."""
        kept = self.max_staleness + 1 if self.objective().old.needs("snapshot") else 0
        return range(max(version + 1 - kept, 0), version + 1)

    @property
    def members(self) -> int:
        """Rollouts that are started for a group."""
        return self.group_size + self.redundancy

    def digest(self) -> str:
        """sha256 over the values that decide what is learned, for the checkpoint.

        A value that came later counts only where it is not its default: so checkpoints from before
        it stay usable, and those of today by a trainer of yesterday. A default never changes then.
        """
        values = {
            field.name: _plain(getattr(self, field.name))
            for field in dataclasses.fields(self)
            if field.name not in FREE
            and (field.name in FIRST or getattr(self, field.name) != field.default)
        }
        return hashlib.sha256(orjson.dumps(values, option=orjson.OPT_SORT_KEYS)).hexdigest()


FIRST = frozenset({
    "advantage", "loss", "clip_low", "clip_high", "clip_dual", "aggregate", "aggregate_norm",
    "entropy", "lr", "schedule", "steps", "betas", "weight_decay", "max_grad_norm", "max_staleness",
    "groups_per_step", "group_size", "capacity_groups", "filters", "missing", "on_stale",
    "temperature", "seed", "micro_batch_tokens", "max_skipped",
})  # fmt: skip
"""What the digest of the first release was taken over, whatever its values."""

FREE = frozenset({
    "checkpoint_keep_every", "gradient_checkpointing", "ranks", "save", "announce", "adapter_alone",
})  # fmt: skip
"""What may change between two checkpoints: it decides nothing that is learned."""

LOOKS = frozenset({"prox", "ref", "entropy", "norms"})
"""What rules of rewards may need that somebody has to look at."""

PACKINGS = ("rows", "shared", "packed")
SWITCHES = ("exact", "gradient_checkpointing", "stream", "adapter_alone")
NAMED = {
    "packing": PACKINGS, "precision": PRECISIONS,
    "save": ("sync", "async"), "announce": ("durable", "early"),
}  # fmt: skip
"""What is one of a few names and no rule."""

BOUNDS: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "clip_low": (lambda x: 0 <= x <= 1, "give a number in [0, 1]"),
    "clip_high": (lambda x: x >= 0, "give a number of at least 0"),
    "clip_dual": (lambda x: x == 0 or x > 1, "give 0 (off) or a number above 1, such as 3"),
    "aggregate_norm": (lambda x: x >= 0, "give a number of tokens"),
    "entropy": (lambda x: x >= 0, "give 0 (off) or a small number, such as 0.01"),
    "lr": (lambda x: x > 0, "give a number above 0"),
    "steps": (lambda x: x >= 1, "give at least 1"),
    "weight_decay": (lambda x: x >= 0, "give 0 (off) or more"),
    "max_grad_norm": (lambda x: x > 0, "give a number above 0, such as 1"),
    "max_staleness": (lambda x: x >= 0, "give 0 (only the current weights) or more"),
    "stale_wait_s": (lambda x: x >= 0, "give 0 (no wait) or a number of seconds"),
    "stale_wait_steps": (lambda x: x >= 0, "give 0 (any number) or a number of batches"),
    "replay_ratio": (lambda x: 0 <= x < 1, "give a share in [0, 1), such as 0.25"),
    "replay_capacity": (lambda x: x >= 1, "give at least 1"),
    "replay_max_age": (lambda x: x >= 0, "give a number of versions"),
    "replay_max_uses": (lambda x: x >= 1, "give at least 1"),
    "success_pool": (lambda x: x >= 0, "give 0 (none) or a number of tasks"),
    "groups_per_step": (lambda x: x >= 1, "give at least 1"),
    "group_size": (lambda x: x >= 1, "give at least 1"),
    "over_provision": (lambda x: 1 <= x <= 64, "give 1 (none), or such as 2"),
    "retention": (lambda x: x >= 0, "give 0 (no bound) or a number of rounds"),
    "redundancy": (lambda x: x >= 0, "give 0 (none), or 1 or 2 for environments that straggle"),
    "capacity_groups": (lambda x: x >= 1, "give at least groups_per_step"),
    "temperature": (lambda x: x > 0, "greedy samples teach nothing; give a number above 0"),
    "micro_batch_tokens": (lambda x: x >= 1, "give what fits into memory, such as 16384"),
    "max_skipped": (lambda x: x >= 1, "give at least 1"),
    "ranks": (lambda x: x >= 1 and x == int(x), "give 1, or as many as there are devices"),
    "epochs": (lambda x: x >= 1, "give at least 1"),
    "minibatch": (lambda x: x >= 0, "give 0 (the whole batch) or a number of trajectories"),
    "checkpoint_keep_every": (lambda x: x >= 0, "give 0 (none) or a number of versions"),
}


TABLES: Mapping[str, Callable[[Mapping[str, Any]], object]] = {
    "lora": Lora.of, "recorded": Recorded.of, "share": Share.of,
}  # fmt: skip
"""What is a table of its own, and no rule."""


def _written(key: str, value: object) -> object:
    """A value of a configuration file: tables are choices, lists do not change."""
    if key in TABLES and isinstance(value, Mapping):
        return TABLES[key](value)
    if isinstance(value, list):
        return tuple(_written(key, each) for each in value)
    return Choice.of(key, value) if isinstance(value, Mapping) else value


def _plain(value: object) -> object:
    """The other way round, for the digest."""
    if isinstance(value, tuple):
        return tuple(_plain(each) for each in value)
    return value.plain() if isinstance(value, Choice) else value
