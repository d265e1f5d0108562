"""The tables below `[learner]` of a recipe, and `[policy.lora]`; defaults suit the demonstration.

A text beside the type of a value is its key in `[learner]` itself, if that is another one.

Recorded groups are tokens of the same tokenizer, with the log-probabilities of their sampling.
Shared groups are text: the trainer tokenises it for its own policy, and has only its own
log-probabilities for it. The versions of both belong to other runs, so they are dropped here.
Sources: UI-S1 (semi-online replay); SAPO, arXiv 2509.08721 (swarm sharing).
"""

import re
from math import floor
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PlainValidator, model_validator

from rollcall.schemas.errors import Refused
from rollcall.schemas.strict_table import StrictTable
from rollcall.trainer.config.value_types import (
    RULE,
    Count,
    Natural,
    NotNegative,
    Positive,
    Switch,
    Text,
    fits,
    number,
    unfit,
)

FLOAT32, BFLOAT16 = "float32", "bfloat16"


def _betas(value: Any) -> tuple[float, float]:
    numbers = value if isinstance(value, list | tuple) else ()
    if len(numbers) != 2 or not all(type(x) in (int, float) and 0 <= x < 1 for x in numbers):
        remedy = "give a list of 2 numbers in [0, 1), such as [0.9, 0.95]"
        raise unfit(remedy)
    return numbers[0], numbers[1]


class Optimiser(StrictTable):
    """`[learner.optimiser]`: the updates of a step."""

    lr: Positive = 1e-3
    schedule: Annotated[str, RULE] = "linear"
    betas: Annotated[tuple[float, float], PlainValidator(_betas)] = (0.9, 0.95)
    weight_decay: NotNegative = 0.0
    max_grad_norm: Positive = 1.0
    max_skipped: Count = 3
    """The number of consecutive steps without a finite gradient that ends the process."""
    epochs: Count = 1
    """The number of passes over a batch in one step."""
    minibatch: Natural = 0
    """The number of trajectories of one update of the weights; 0: all of the batch."""


class Groups(StrictTable):
    """`[learner.groups]`: the groups of a batch, and the rollouts that are started for them."""

    per_step: Annotated[Count, "groups_per_step"] = 8
    size: Annotated[Count, "group_size"] = 8
    capacity: Annotated[Count, "capacity_groups"] = 64
    """The number of complete groups that may wait before the trainer pauses its partitions."""
    missing: Literal["drop", "train_partial"] = "drop"
    """The treatment of a group with failed members: `drop`, or `train_partial` on the others."""
    order: Literal["edf", "fifo"] = "edf"
    """The order of groups: `edf` the one that is stale next, `fifo` the one that came first."""
    over_provision: Annotated[
        float, number(lambda x: 1 <= x <= 64, "give 1 (none), or such as 2")
    ] = 1.0
    """The number of started groups, as a multiple of `per_step`; when a batch is complete, all
    others are cancelled, and resumed first in the next round."""
    mask_continued: Switch = False
    """True: tokens that were sampled before a rollout was resumed are context, and not trained
    on."""
    retention: Natural = 0
    """The most times that a rollout is resumed before it is dropped; 0 is no bound."""
    redundancy: Natural = 0
    """The number of additional members that are started in each group: the first `size` that can
    be trained on, in log order, are its members, and the others are cancelled."""

    @model_validator(mode="after")
    def _hold_a_batch(self) -> Self:
        if self.capacity < self.per_step:
            msg = (
                f"capacity_groups is {self.capacity}, fewer than the groups_per_step "
                f"{self.per_step}; no batch would ever be complete; raise it"
            )
            raise Refused(msg)
        return self


class Staleness(StrictTable):
    """`[learner.staleness]`: the treatment of groups that were sampled by older versions."""

    bound: Annotated[Natural, "max_staleness"] = 2
    """In versions: a group with a token older than this is dropped."""
    on_stale: Literal["drop", "wait", "weight"] = "drop"
    """`drop`; `wait`: take no step that would make a running group stale; `weight`: let older
    groups count for less."""
    wait_s: Annotated[NotNegative, "stale_wait_s"] = 60.0
    """The longest time for which `wait` holds a step back, in seconds of the log."""
    wait_steps: Annotated[Natural, "stale_wait_steps"] = 0
    """The number of batches that may accumulate meanwhile; 0: any number."""


class ReplayRule(StrictTable):
    """`[learner.replay]`: the amount and the age of replayed samples."""

    ratio: Annotated[
        float, number(lambda x: 0 <= x < 1, "give a share in [0, 1), such as 0.25"), "replay_ratio"
    ] = 0.0
    """The share of a batch's groups that were used before, the last used first; 0: none."""
    capacity: Annotated[Count, "replay_capacity"] = 64
    """The number of groups that are kept."""
    max_age: Annotated[Natural, "replay_max_age"] = 8
    """The largest age of the oldest token, in versions; older samples are forgotten."""
    max_uses: Annotated[Count, "replay_max_uses"] = 4
    """The most uses of a group, the first included."""
    pool: Annotated[Natural, "success_pool"] = 0
    """The number of tasks whose latest success is kept, and given to groups of that task in which
    all fail; 0: none. It keeps its own versions and log-probabilities: choose a correction."""

    def groups(self, groups: int) -> int:
        """Return the number of replayed groups in a batch, if that many are kept."""
        return groups_of(self.ratio, groups)

    def fresh(self, groups: int) -> int:
        """Return the number of groups in a batch that are used for the first time."""
        return groups - self.groups(groups)


class Computation(StrictTable):
    """`[learner.computation]`: the forms in which a step is computed."""

    micro_batch_tokens: Count = 16384
    packing: Literal["rows", "shared", "packed"] = "rows"
    """`rows` side by side; or `shared`: what rows begin with together is computed once, and logits
    only where something was sampled; or `packed`: besides, what shares nothing lies end to end in
    place of being padded. They are the same to 5e-7, not to the bit."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """The dtype of the model's products; `bfloat16` makes them smaller and, on a device with
    support for it, faster. Weights, gradients and moments are float32."""
    exact: Switch = False
    """True: log-probabilities equal the engine's to the bit, on a CPU. Trainer and engine compute
    every token in a pass over its own row, of a width that its position decides."""
    ranks: Annotated[
        int, fits(lambda x: type(x) is int and x >= 1, "give 1, or as many as there are devices")
    ] = 1
    """The number of processes of the learner, each with its part of the weights and of every
    batch."""
    gradient_checkpointing: Switch = False
    """True: activations are computed again in the backward pass, which needs the memory of one
    layer instead of all."""


class Saving(StrictTable):
    """`[learner.saving]`: the checkpoints, and the time at which a version is announced."""

    save: Literal["sync", "async"] = "sync"
    """`async`: a step's checkpoint is written while the next batch is trained."""
    announce: Literal["durable", "early"] = "durable"
    """When a version is announced: when its checkpoint is `durable`, or `early`, when its weights
    are: then a crash in between abandons it."""
    keep_every: Annotated[Natural, "checkpoint_keep_every"] = 20
    """Besides the newest checkpoints the first stays, and one in this many versions; 0 keeps none.

    One takes 12 bytes a parameter (weights and two moments in float32), so a run of 120 steps keeps
    seven: 35 MB where there are 413,184 parameters, 42 GB where there are 500 million.
    """

    @model_validator(mode="after")
    def _save_before_announcing(self) -> Self:
        if self.announce == "early" and self.save == "sync":
            msg = "announce 'early' is for checkpoints that are written later; set save to 'async'"
            raise Refused(msg)
        return self


class Lora(StrictTable):
    """`[policy.lora]` of a recipe."""

    rank: Count = 16
    alpha: Positive = 32.0
    """The factor of the product of the two matrices, times rank."""
    targets: tuple[Text, ...] = ()
    """Suffixes of module names, such as q_proj; none: every linear layer but the head."""


STRETCH = re.compile(r"(\d{1,9}):(\d{1,18})-(\d{1,18})")
Ratio = Annotated[float, number(lambda x: 0 < x < 1, "give a share between 0 and 1, such as 0.25")]


class Recorded(StrictTable):
    """`[learner.recorded]`: groups of an earlier run, in log order, read from the log."""

    run: Annotated[
        str, fits(lambda x: isinstance(x, str) and x, "name the run that was recorded")
    ] = Field("", validate_default=True)
    policy: Text = ""
    """The policy whose tokens are trained on; empty: the run's first, which has the run's name."""
    ratio: Ratio = 0.25
    """The share of a batch's groups, as long as recorded groups are left."""
    offsets: tuple[Text, ...] = ()
    """Ranges `PARTITION:FIRST-END` of `trajectories.scored`; none: all from before this run."""
    passes: Natural = 1
    """The number of passes over all of them; 0: unlimited."""

    @model_validator(mode="after")
    def _name_ranges(self) -> Self:
        self.stretches()
        return self

    @property
    def policy_id(self) -> str:
        """The policy whose tokens are trained on."""
        return self.policy or self.run

    def stretches(self) -> dict[int, tuple[int, int]]:
        """Return by partition the first offset and the end, exclusive. Raises Refused."""
        found = {}
        for text in self.offsets:
            match = STRETCH.fullmatch(text)
            if match is None or int(match[2]) >= int(match[3]) or int(match[1]) in found:
                msg = f"offsets has {text!r}; write PARTITION:FIRST-END, each partition once"
                raise Refused(msg)
            found[int(match[1])] = int(match[2]), int(match[3])
        return found


class Share(StrictTable):
    """`[learner.share]`: groups of other runs that train at the same time, as text."""

    ratio: Ratio = 0.25
    """The share of a batch's groups, if there are that many: a batch does not wait for them."""
    runs: tuple[Text, ...] = ()
    """The ids of these runs; none: all runs with the same scoring."""
    max_age_s: Positive = 300.0
    """The largest age since a rollout ended, in seconds of the log; older groups are dropped."""
    capacity: Count = 64
    """The number of complete groups that are kept, the newest."""

    def wants(self, run_id: str) -> bool:
        """Return True if groups of that other run are used."""
        return run_id in self.runs if self.runs else run_id != ""


def groups_of(ratio: float, groups: int) -> int:
    """Return the number of groups of a batch that the share amounts to, rounded down."""
    return floor(groups * ratio + 1e-9)
