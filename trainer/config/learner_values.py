"""The values of a learner's configuration; the defaults suit the CPU demonstration."""

from dataclasses import dataclass

from rollcall.schemas.rules import RuleChoice
from rollcall.trainer.config.tables import Lora, Recorded, Share


@dataclass(frozen=True, slots=True)
class LearnerValues:
    """Rules go by name or as `module:function`; a table with `name` gives one its options too."""

    advantage: str | RuleChoice = "batch_normalised"
    loss: str | RuleChoice = "clip_higher"
    exploration: str | RuleChoice = "even"
    """The rule that weights the entropy of each sequence; `entropy` is the weight of most."""
    shaping: tuple[str | RuleChoice, ...] = ()
    """The rules that change total rewards before advantages are computed, in order."""
    clip_low: float | None = None
    """The options `low`, `high` and `dual` of a loss that clips, as they were first spelled."""
    clip_high: float | None = None
    clip_dual: float = 0.0
    """0 is off."""
    aggregate: str = "token_mean"
    """A configuration with a rule whose source has another one names it, or is refused."""
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
    batch: str | RuleChoice = "groups"
    """The rule that completes a batch: `groups_per_step` groups, or a number of tokens
    (`token_budget`)."""
    group_size: int = 8
    capacity_groups: int = 64
    """Complete groups that may wait before the trainer pauses its partitions."""
    filters: tuple[str | RuleChoice, ...] = ("none",)
    missing: str = "drop"
    order: str = "edf"
    """Which complete group goes first: the one that is stale next, or (`fifo`) that came first."""
    on_stale: str = "drop"
    """`drop`; `wait`: take no step that would make a running group stale; `weight`: let older
    groups count for less."""
    stale_wait_s: float = 60.0
    """The longest time for which `wait` holds a step back, in seconds of the log."""
    stale_wait_steps: int = 0
    """So many more batches may pile up meanwhile; 0: any number."""
    replay_ratio: float = 0.0
    """The share of a batch's groups that were used before, the last used first; 0: none."""
    replay_capacity: int = 64
    """Groups that are kept for it."""
    replay_max_age: int = 8
    """In versions: what has an older token is not used again."""
    replay_max_uses: int = 4
    """The most times that a group is trained on."""
    success_pool: int = 0
    """The number of tasks whose latest success is kept, and given to groups of that task in which
    all fail; 0: none. It keeps its own versions and log-probabilities: choose a correction."""
    recorded: Recorded | None = None
    """`[learner.recorded]`: a share of a batch's groups that an earlier run has recorded."""
    share: Share | None = None
    """`[learner.share]`: a share of a batch's groups that other runs are trained on, as text."""
    temperature: float = 1.0
    """The sampling temperature; the trainer divides its logits by it."""
    seed: int = 0
    micro_batch_tokens: int = 16384
    packing: str = "rows"
    """`rows` side by side; or `shared`: what rows begin with together is computed once, and logits
    only where something was sampled; or `packed`: besides, what shares nothing lies end to end in
    place of being padded. They are the same to 5e-7, not to the bit."""
    precision: str = "float32"
    """The dtype of the model's products; `bfloat16` makes them smaller and, on a device with
    support for it, faster. Weights, gradients and moments are float32."""
    exact: bool = False
    """True: log-probabilities equal the engine's to the bit, on a CPU. Trainer and engine compute
    every token in a pass over its own row, of a width that its position decides."""
    ranks: int = 1
    """Processes that the learner is, each with its part of the weights and of every batch."""
    lora: Lora | None = None
    """`[policy.lora]` of the recipe: adapters are trained in place of the weights."""
    adapter_alone: bool = False
    """True: the adapters are published and saved, not the merged weights; a recipe says so by
    `[policy] weights = "adapter"`."""
    gradient_checkpointing: bool = False
    """True: activations are computed again in the backward pass, which needs the memory of one
    layer instead of all."""
    max_skipped: int = 3
    """So many steps in a row without a finite gradient end the process."""
    epochs: int = 1
    """The number of passes over a batch in one step."""
    minibatch: int = 0
    """Trajectories to one update of the weights; 0: all of the batch."""
    distill: str | RuleChoice = "none"
    """The rule that adds a teacher's token scores to the advantage."""
    old_logprobs: str | RuleChoice = "none"
    """The source of the trainer's own log-probabilities at sampling time."""
    correction: str | RuleChoice = "none"
    """The rule that weights a token whose log-probability differs between engine and trainer."""
    kl: str | RuleChoice = "none"
    """The penalty for leaving a frozen reference policy."""
    step_size: str | RuleChoice = "scheduled"
    """The rule that scales a step relative to the schedule."""
    checkpoint_keep_every: int = 20
    """Besides the newest checkpoints the first stays, and one in so many versions; 0 keeps none.

    One takes 12 bytes a parameter (weights and two moments in float32), so a run of 120 steps keeps
    seven: 35 MB where there are 413,184 parameters, 42 GB where there are 500 million.
    """

    stream: bool = False
    """True: gradients are accumulated as groups complete, and applied when the batch is
    complete."""
    save: str = "sync"
    """`async`: a step's checkpoint is written while the next batch is trained."""
    announce: str = "durable"
    """When a version is announced: when its checkpoint is `durable`, or `early`, when its weights
    are: then a crash in between abandons it."""
    over_provision: float = 1.0
    """So many times `groups_per_step` groups are kept started; when a batch is there all others are
    cancelled, and gone on with first in the next round."""
    mask_continued: bool = False
    """True: tokens that were sampled before a rollout was resumed are context, and not trained
    on."""
    retention: int = 0
    """The most times that a rollout is resumed before it is dropped; 0 is no bound."""
    redundancy: int = 0
    """So many members more are started in each group: the first `group_size` that can be trained
    on, in log order, are its members, and the others are cancelled."""
