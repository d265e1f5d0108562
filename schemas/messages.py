"""The records that processes exchange, as frozen dataclasses of the Avro schemas in `avro/`.

The `.avsc` file is the contract. Its dataclass has the same names, order and defaults, which a test
checks. Packed arrays are little-endian bytes (`schemas.packed`). A message whose packed lengths
disagree cannot be constructed: this raises `LengthsDisagree`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, make_dataclass
from functools import cache
from typing import Any, ParamSpec, TypeVar

from rollcall.schemas.errors import LengthsDisagree

P = ParamSpec("P")
M = TypeVar("M")


def plain_maker(record: Callable[P, M]) -> Callable[P, M]:
    """Return a constructor of a message that takes a quarter of the time of its class.

    A frozen dataclass sets every field by `object.__setattr__`. Here the fields are set on a
    mutable class with the same slots, whose instance then becomes the message.
    """
    return _maker(record)


@cache
def _maker(record: Any) -> Callable[..., Any]:
    same: Any = field  # at most one of both defaults is set
    given = [
        (of.name, Any, same(default=of.default, default_factory=of.default_factory))
        for of in fields(record)
    ]
    check = getattr(record, "__post_init__", None)

    def become_message(message: Any) -> None:
        message.__class__ = record
        if check is not None:
            check(message)

    closing = {"__post_init__": become_message}
    return make_dataclass(record.__name__, given, slots=True, namespace=closing)


@dataclass(frozen=True, slots=True)
class Claim:
    """A content-addressed object that holds the whole record, in the same wire format."""

    uri: str
    sha256: str
    size_bytes: int
    codec: str = "none"


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: str
    content: str = ""
    tool_calls: str = ""
    tool_call_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a continuation is drawn."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """What a rollout may take; stored with its start, so that history never depends on settings."""

    max_turns: int = 64
    max_tokens: int = 0
    max_tries: int = 3
    max_attempts: int = 3
    call_timeout_s: float = 120.0
    step_timeout_s: float = 60.0
    rollout_timeout_s: float = 3600.0
    open_timeout_s: float = 0.0
    max_wishes: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be done."""

    environment: str = ""
    environment_config: str = ""
    seed: int = 0
    prompt: str = ""
    system: str = ""
    task_id: str = ""


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """Run this task with this agent, environment and policy."""

    rollout_id: str
    task: Task
    agent: str = "react"
    agent_config: str = ""
    policy_id: str = "policy"
    run_id: str = ""
    purpose: str = "evaluate"
    group_id: str = ""
    group_size: int = 1
    user: str = ""
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    sampling_seed: str = ""
    min_policy_version: int = 0
    claim: Claim | None = None
    parent_rollout_id: str = ""
    parent_position: int = -1
    policy_version: int = -1
    min_policy_versions: dict[str, int] = field(default_factory=dict)
    policy_versions: dict[str, int] = field(default_factory=dict)
    scorings: tuple[str, ...] = ()
    """The scorings that owe it a score; empty: one score by any scoring."""

    def asks_scoring(self, scoring_id: str) -> bool:
        """Return whether a scoring has to score its trajectory: it is named, or none is."""
        return not self.scorings or scoring_id in self.scorings

    @property
    def seed_key(self) -> str:
        """The text from which the seeds of its calls are derived."""
        return self.sampling_seed or self.rollout_id

    def versions_for(self, policy_id: str) -> tuple[int, int]:
        """Return the oldest version that may answer calls of a policy, and the only one, or -1.

        Each policy counts its own versions, so the versions of one do not apply to another.
        """
        if policy_id == self.policy_id:
            return self.min_policy_version, self.policy_version
        least = self.min_policy_versions.get(policy_id, 0)
        return least, self.policy_versions.get(policy_id, -1)


@dataclass(frozen=True, slots=True)
class ModelCall:
    """Sample a continuation of a token sequence, or abort that."""

    rollout_id: str
    attempt: int
    position: int
    tries: int
    command_id: bytes
    body_digest: bytes
    answer_partition: int
    not_after_ms: int
    kind: str
    policy_id: str
    sequence: int
    messages: tuple[Message, ...]
    sampling: Sampling
    seed: int
    prefix_ids: bytes | None = None
    prefix_length: int = 0
    prefix_digest: bytes = b""
    tools: str = ""
    min_policy_version: int = 0
    claim: Claim | None = None
    policy_version: int = -1

    def __post_init__(self) -> None:
        if self.prefix_ids is not None and len(self.prefix_ids) != 4 * self.prefix_length:
            raise LengthsDisagree(
                type(self).__name__,
                prefix_ids=len(self.prefix_ids),
                prefix_length=self.prefix_length,
            )


@dataclass(frozen=True, slots=True)
class EnvironmentStep:
    """Open an environment, apply an action, or close it."""

    rollout_id: str
    attempt: int
    position: int
    tries: int
    command_id: bytes
    body_digest: bytes
    answer_partition: int
    not_after_ms: int
    kind: str
    environment: str
    session: str = "main"
    environment_config: str = ""
    seed: int = 0
    index: int = 0
    action: str = ""
    history: tuple[str, ...] | None = None
    timeout_s: float = 60.0
    claim: Claim | None = None


NO_EPOCH = -1
"""The leader epoch of a record if it is not known."""


@dataclass(frozen=True, slots=True)
class RolloutStarted:
    """A request was accepted; from here on the journal alone tells the story."""

    request: RolloutRequest
    from_offset: int
    request_offset: int
    program_digest: str = ""
    requested_ms: int = 0
    rules: int = 0
    """The version of the fold's rules, under which its whole history is folded."""
    request_epoch: int = NO_EPOCH
    requests_id: str = ""


RULES = 1
"""The present rules. 1: one effect of a session at a time, and parallel calls share a budget."""
NO_POSITION = -1
"""The position of an entry that answers no command."""
UNFINISHED = "unfinished: a batch is complete, the next round goes on with it"
"""The reason with which a trainer cancels a rollout that it resumes later."""


@dataclass(frozen=True, slots=True)
class RolloutRefused:
    """A request that cannot be run. Ends the rollout."""

    code: str
    reason: str
    from_offset: int
    request_offset: int
    request: RolloutRequest | None = None
    request_epoch: int = NO_EPOCH
    requests_id: str = ""


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """The rollout begins anew, under the attempt number of the envelope."""

    reason: str


@dataclass(frozen=True, slots=True)
class ModelAnswered:
    """What the policy said to one ModelCall."""

    text: str
    added_ids: bytes
    token_ids: bytes
    logprobs: bytes
    versions: bytes
    finish_reason: str
    policy_id: str
    sequence: int
    tool_calls: str = ""
    engine: str = ""
    precision: str = ""
    template_digest: str = ""
    claim: Claim | None = None
    stopped_by: str = ""
    untrainable: str = ""

    def __post_init__(self) -> None:
        if not len(self.token_ids) == len(self.logprobs) == len(self.versions):
            raise LengthsDisagree(
                type(self).__name__,
                token_ids=len(self.token_ids),
                logprobs=len(self.logprobs),
                versions=len(self.versions),
            )
        if len(self.token_ids) % 4 or len(self.added_ids) % 4:
            raise LengthsDisagree(
                type(self).__name__,
                token_ids=len(self.token_ids),
                added_ids=len(self.added_ids),
            )


@dataclass(frozen=True, slots=True)
class EnvironmentStepped:
    """What an environment showed."""

    text: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: str = ""
    index: int = 0
    session: str = "main"
    claim: Claim | None = None
    waited_s: float = 0.0
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CallFailed:
    """A command that was not carried out."""

    code: str
    message: str
    retriable: bool


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The rollout's own deadline. Ends it."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class RolloutCancelled:
    """Somebody asked for the end. Ends the rollout."""

    reason: str
    by: str = ""


@dataclass(frozen=True, slots=True)
class RolloutFinished:
    """The program came to its end, or could not go on. Ends the rollout."""

    status: str
    code: str = ""
    reason: str = ""
    result: str = ""
    positions: int = 0


Body = (
    RolloutStarted
    | RolloutRefused
    | AttemptStarted
    | ModelAnswered
    | EnvironmentStepped
    | CallFailed
    | DeadlinePassed
    | RolloutCancelled
    | RolloutFinished
)


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of a rollout's journal. Position is -1 where none is meant; ids are empty there."""

    rollout_id: str
    attempt: int
    position: int
    tries: int
    command_id: bytes
    body_digest: bytes
    written_by: str
    body: Body

    @classmethod
    def decision(cls, rollout_id: str, attempt: int, writer: str, body: Body) -> "Event":
        """An entry about the rollout itself, which answers no command."""
        return cls(rollout_id, attempt, NO_POSITION, 0, b"", b"", writer, body)


@dataclass(frozen=True, slots=True)
class Sequence:
    """A token sequence that was only ever extended."""

    token_ids: bytes
    loss_mask: bytes
    behaviour_logprobs: bytes
    versions: bytes
    policy_index: bytes
    messages: tuple[Message, ...]
    old_logprobs: bytes | None = None
    provenance: str = "missing"
    engine: str = ""
    precision: str = ""
    template_digest: str = ""
    samplings: tuple[Sampling, ...] = ()

    def __post_init__(self) -> None:
        tokens = len(self.loss_mask)
        wide = (len(self.token_ids), len(self.behaviour_logprobs), len(self.versions))
        if wide != (4 * tokens,) * 3 or len(self.policy_index) != tokens:
            raise LengthsDisagree(
                type(self).__name__,
                token_ids=len(self.token_ids),
                loss_mask=tokens,
                behaviour_logprobs=len(self.behaviour_logprobs),
                versions=len(self.versions),
                policy_index=len(self.policy_index),
            )
        if self.old_logprobs is not None and len(self.old_logprobs) != 4 * tokens:
            raise LengthsDisagree(
                type(self).__name__, loss_mask=tokens, old_logprobs=len(self.old_logprobs)
            )


@dataclass(frozen=True, slots=True)
class StepTaken:
    """One environment step of a trajectory."""

    position: int
    session: str
    action: str | None
    text: str
    reward: float
    terminated: bool
    truncated: bool
    info: str = ""


@dataclass(frozen=True, slots=True)
class RolloutTimers:
    """How long the phases of a rollout took, in seconds; null where its journal does not tell."""

    submission_s: float | None = None
    """From the request to the start."""
    scheduling_s: float | None = None
    """From there, or from the beginning of the last attempt, to the slot of its environment."""
    environment_start_s: float | None = None
    """The work of all openings of the last attempt."""
    execution_s: float | None = None
    """From its first observation to the end."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A rollout that has ended, whole."""

    rollout_id: str
    attempt: int
    status: str
    request: RolloutRequest | None
    policies: tuple[str, ...]
    sequences: tuple[Sequence, ...] | None
    steps: tuple[StepTaken, ...] | None
    model_calls: int
    sampled_tokens: int
    failures: int
    journal_partition: int
    first_offset: int
    last_offset: int
    started_ms: int
    ended_ms: int
    code: str = ""
    reason: str = ""
    result: str = ""
    claim: Claim | None = None
    timers: RolloutTimers | None = None


@dataclass(frozen=True, slots=True)
class Reward:
    """What one scorer gave."""

    scorer: str
    value: float | None
    reason: str = ""
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class TokenScores:
    """What one scorer gave for each token of a sequence, such as a teacher's log-probabilities."""

    scorer: str
    sequence: int
    scores: bytes

    def __post_init__(self) -> None:
        if len(self.scores) % 4:
            raise LengthsDisagree(type(self).__name__, scores=len(self.scores))


@dataclass(frozen=True, slots=True)
class ScoredTrajectory:
    """A trajectory with rewards."""

    scoring_id: str
    trajectory: Trajectory
    rewards: tuple[Reward, ...]
    total: float | None
    source_topic: str
    source_partition: int
    source_offset: int
    reason: str = ""
    token_scores: tuple[TokenScores, ...] = ()


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """Weights by reference and digest."""

    uri: str
    sha256: str
    size_bytes: int
    weights_digest: str
    version: int
    base_version: int = -1


@dataclass(frozen=True, slots=True)
class Consumed:
    """How far a trainer has read one partition."""

    topic: str
    partition: int
    next_offset: int
    above: tuple[int, ...]
    topic_id: str = ""


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """A version of a policy; each record stands alone."""

    policy_id: str
    version: int
    parent: int
    run_id: str
    step: int
    weights_digest: str
    full: WeightsFile
    canary_ids: bytes
    canary_logprobs: bytes
    deltas: tuple[WeightsFile, ...] = ()
    precision: str = "float32"
    consumed: tuple[Consumed, ...] = ()

    def __post_init__(self) -> None:
        if len(self.canary_ids) != len(self.canary_logprobs) + 4 or len(self.canary_ids) % 4:
            raise LengthsDisagree(
                type(self).__name__,
                canary_ids=len(self.canary_ids),
                canary_logprobs=len(self.canary_logprobs),
            )


@dataclass(frozen=True, slots=True)
class TrajectoryRef:
    """One trajectory of a batch."""

    topic: str
    partition: int
    offset: int
    rollout_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class TrajectoryRefs:
    """Many trajectories of one topic, in a third of the room."""

    topic: str
    partitions: bytes
    """int32"""
    offsets: bytes
    """int64"""
    attempts: bytes
    """int32"""
    rollout_ids: bytes
    """16 bytes for each id of 32 hexadecimal digits; empty where names are given."""
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        size = len(self.partitions)
        ids = len(self.rollout_ids) or 16 * len(self.names)
        if size % 4 or (len(self.offsets), len(self.attempts), ids) != (2 * size, size, 4 * size):
            raise LengthsDisagree(
                type(self).__name__,
                partitions=len(self.partitions),
                offsets=len(self.offsets),
                attempts=len(self.attempts),
                rollout_ids=ids,
            )


@dataclass(frozen=True, slots=True)
class TrainStep:
    """One optimiser step: its metrics and exactly what it was made of."""

    policy_id: str
    run_id: str
    step: int
    version: int
    parent: int
    trajectories: tuple[TrajectoryRef, ...]
    metrics: dict[str, float]
    dropped: dict[str, int] = field(default_factory=dict)
    checkpoint: str = ""
    weights_digest: str = ""
    machine: dict[str, str] = field(default_factory=dict)
    packed: TrajectoryRefs | None = None
    """Set if `trajectories` would not fit the record; `trajectory_refs.refs_of` reads either."""
    writer: str = ""
    """The trainer process that took the step; empty if the writer did not record it."""
    predecessor: str = ""
    """The last step of the run that its writer knew (`rollcall.trainer.checkpoints.step_chain`)."""


@dataclass(frozen=True, slots=True)
class Control:
    """A word to all workers: of people to agents, and of model servers to one another."""

    kind: str
    rollout_id: str = ""
    group_id: str = ""
    """A group of rollouts; in notices of adoption the policy."""
    worker: str = ""
    reason: str = ""
    run_id: str = ""
    """For pause and resume: the run; empty for all requests."""


@dataclass(frozen=True, slots=True)
class Quota:
    """What the rollouts of one user may take, all workers together; 0 is no limit."""

    user: str
    running: int = 0
    calls_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """Which store a cluster's heavy records lie in: the first record of a name counts."""

    store: str
    identity: str


@dataclass(frozen=True, slots=True)
class Instance:
    """What became of one box, or of whoever waits for one; written by environments workers."""

    box_id: str
    worker: str
    kind: str
    host: str = ""
    driver: str = ""
    image: str = ""
    mode: str = "unknown"
    rollout_id: str = ""
    attempt: int = 0
    reason: str = ""
    took_s: float = 0.0
