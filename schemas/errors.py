"""The tree of errors, by the reaction to each. Only errors of this tree are caught on purpose.

RollcallError
  + Refused          invalid input of a user                -> one clear line, exit code 2
  + WireError        bytes that no schema of ours can read  -> dead.letters, and on
      + BadMagic, UnknownSchema, BadBytes, LengthsDisagree, WeightsDiffer, NoSuchPartition,
        KilledWorkers, Skipped, ObjectLost
          + WrongSchema
  + WorkFailed       one command cannot be done             -> CallFailed, the fold decides
      + TooLarge, NoTopic
  + RolloutBroken    one rollout cannot go on               -> a new attempt, or RolloutFinished
      + DeterminismError   its program asks for something else than its journal answers
      + ProgramFailed      its program raised, yielded an invalid value, or never ended
  + BatchFailed      one batch cannot be trained on         -> dropped with a reason, the next
  + Unavailable      a service is away                      -> wait, say so once, try again
      + RegistryDiffers, StoreUnavailable, WeightsMissing, MembershipLost
  + Unfit            this process must not go on            -> exit before the commit
      + JournalGone, RequestsSkipped, TopicRecreated, TopicsDiffer, StoresDiffer,
        RegistryEmptied, DeliveryFailed, DeadLetterStorm, EventLoopBlocked, DiskFull,
        CanaryMismatch, EngineDied, RunSuperseded
"""

from enum import StrEnum

from rollcall.schemas.redaction import redact
from rollcall.schemas.untrusted_text import REASON_CHARS, clean_text


class FailureCode(StrEnum):
    """The codes with which Rollcall itself fails a command or ends a rollout.

    Fields of records stay plain texts: programs, environments, scorers and engines of users may
    give codes of their own. A member equals its text, and is written and shown as that text.
    """

    # Refusals of requests; the rest of them are told by one of the codes below.
    REFUSED = "refused"
    REPEATED = "repeated"
    SKIPPED = "skipped"
    UNREADABLE = "unreadable"

    # Ends of rollouts.
    AGENT_DEADLINE = "agent_deadline"
    AGENT_EXIT = "agent_exit"
    BROKEN = "broken"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    DETERMINISM = "determinism"
    FORK_DIVERGED = "fork_diverged"
    POSITION_LIMIT = "position_limit"
    RAISED = "raised"
    RESULT_TOO_LARGE = "result_too_large"
    RUBBISH = "rubbish"
    STUCK = "stuck"
    TOKEN_LIMIT = "token_limit"
    TURN_LIMIT = "turn_limit"
    UNKNOWN_PROGRAM = "unknown_program"

    # Commands that are not sent, or not carried out.
    EXPIRED = "expired"
    KILLED_WORKER = "killed_worker"
    NO_TOPIC = "no_topic"
    OBJECT_LOST = "object_lost"
    OUT_OF_BOUNDS = "out_of_bounds"
    TOO_LARGE = "too_large"
    UNKNOWN_POLICY = "unknown_policy"
    UNWRITABLE = "unwritable"

    # Model servers and the engines in them.
    BAD_ANSWER = "bad_answer"
    BAD_LOGPROBS = "bad_logprobs"
    BAD_PREFIX = "bad_prefix"
    BAD_REQUEST = "bad_request"
    BAD_SAMPLING = "bad_sampling"
    BAD_TOKEN_IDS = "bad_token_ids"
    BUSY = "busy"
    CANARY = "canary"
    MOVED = "moved"
    NO_QUOTA = "no_quota"
    NOT_FINITE = "not_finite"
    NOT_RECORDED = "not_recorded"
    NOT_RENDERABLE = "not_renderable"
    PREFIX_NEEDED = "prefix_needed"
    SCRIPT_FAILED = "script_failed"
    SERVER_AWAY = "server_away"
    TOO_LONG = "too_long"
    UNAUTHORISED = "unauthorised"
    UNKNOWN_MODEL = "unknown_model"
    VERSION_AWAITED = "version_awaited"
    VERSION_GONE = "version_gone"
    VERSION_UNREACHABLE = "version_unreachable"
    VOCABULARY = "vocabulary"
    WEIGHTS = "weights"

    # Environments, their sessions and the agents of others in them.
    AGENT_MISSING = "agent_missing"
    AGENT_START = "agent_start"
    BAD_ARTEFACT = "bad_artefact"
    BAD_CONFIG = "bad_config"
    BAD_HISTORY = "bad_history"
    CLOSED = "closed"
    ENVIRONMENT_AWAY = "environment_away"
    EPISODE_OVER = "episode_over"
    HISTORY_NEEDED = "history_needed"
    NO_ROOM = "no_room"
    OBJECTS_AWAY = "objects_away"
    SESSION_LOST = "session_lost"
    STALE_ATTEMPT = "stale_attempt"
    STALE_RESET = "stale_reset"
    UNKNOWN_ENVIRONMENT = "unknown_environment"
    UNKNOWN_KIND = "unknown_kind"

    # Boxes.
    BAD_ARCHIVE = "bad_archive"
    BOX_DIED = "box_died"
    BOX_SPOILT = "box_spoilt"
    BOX_UNAVAILABLE = "box_unavailable"
    IMAGE = "image"
    KEEPER_GONE = "keeper_gone"
    NOT_STARTED = "not_started"

    # Scorers.
    BAD_IMAGE = "bad_image"
    BAD_TASK = "bad_task"
    USES_ALARM = "uses_alarm"

    def __repr__(self) -> str:
        return repr(self.value)


class RollcallError(Exception):
    """The root of the tree; its text is for people, and secrets are removed from it."""

    def __init__(self, *words: object) -> None:
        super().__init__(*(redact(w) if isinstance(w, str) else w for w in words))


class Refused(RollcallError):
    """Invalid input. The text names the thing, the value found and the remedy."""


class WireError(RollcallError):
    """Bytes that cannot be read; they go to `dead.letters` unchanged."""


class BadMagic(WireError):
    """A value that does not begin with the Confluent prefix."""

    def __init__(self, found: bytes) -> None:
        super().__init__(
            f"the value begins with {found!r}, not with byte 0 and a 4-byte schema id; "
            "was it written without the Confluent wire format?"
        )


class UnknownSchema(WireError):
    """A schema that this process does not know or cannot resolve; another process may."""


class WrongSchema(UnknownSchema):
    """A schema of another record than the topic's, or of none."""


class BadBytes(WireError):
    """Avro bytes that end early, go on too long, or hold impossible values."""


class LengthsDisagree(WireError):
    """Packed arrays of one message whose lengths do not fit each other."""

    def __init__(self, message: str, **sizes_bytes: int) -> None:
        sizes = ", ".join(f"{name} {size} bytes" for name, size in sizes_bytes.items())
        super().__init__(f"packed arrays of {message} do not fit each other: {sizes}")


class ObjectLost(WireError):
    """An object that a record claims and that is gone, or is not what was claimed."""

    light: object = None
    """The light record that claims it, where the codec read one."""


class Skipped(WireError):
    """A record that an operator decided to skip, readable or not."""


class WeightsDiffer(WireError):
    """A weights file whose bytes are not those that its record promises."""


class NoSuchPartition(WireError):
    """A command that names a partition for its answer which its topic does not have."""

    def __init__(self, topic: str, partition: int, partitions: int) -> None:
        super().__init__(
            f"the command wants its answer in partition {partition} of {topic}, which has "
            f"partitions 0 to {partitions - 1}; was it written for another cluster or prefix?"
        )


class KilledWorkers(WireError):
    """A record that ended one worker after another; workers skip it from now on."""


class WorkFailed(RollcallError):
    """One command cannot be done; `code` is a FailureCode or a user's own, the text valid UTF-8."""

    def __init__(self, code: str, message: str, *, retriable: bool) -> None:
        super().__init__(clean_text(message, REASON_CHARS))
        self.code = code
        self.retriable = retriable


class TooLarge(WorkFailed):
    """A record that is too large for its topic, and for which there is no object store."""

    def __init__(self, topic: str, size_bytes: int, limit_bytes: int | None = None) -> None:
        limit = "its topic has now" if limit_bytes is None else f"of {limit_bytes:,}"
        super().__init__(
            FailureCode.TOO_LARGE,
            f"a record of {size_bytes:,} bytes for {topic} is above the limit {limit}; "
            "shorten the rollout or its observations",
            retriable=False,
        )


class NoTopic(WorkFailed):
    """A record whose topic or partition does not exist, or may not be written to."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(
            FailureCode.NO_TOPIC,
            f"{topic} cannot be written to: {reason}; compare it with `rollcall topics plan`",
            retriable=False,
        )


class RolloutBroken(RollcallError):
    """One rollout cannot go on; its worker can."""


class DeterminismError(RolloutBroken):
    """A program that asks for something else than its journal answers."""


class ProgramFailed(RolloutBroken):
    """A program that raised, yielded an invalid value, or never ended; `code` says which.

    The text is valid UTF-8.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(clean_text(message, REASON_CHARS))
        self.code = code


class BatchFailed(RollcallError):
    """A batch on which the optimiser step fails; the weights stay as they were before it."""


class Unavailable(RollcallError):
    """A service that does not answer now; callers log it once and try again."""


class RegistryDiffers(Unavailable):
    """A registry that returns another schema for a known id, and so cannot be trusted."""


class StoreUnavailable(Unavailable):
    """A store of objects or weights that does not answer."""


class WeightsMissing(Unavailable):
    """A weights file that does not exist: not copied yet, or deleted already."""


class MembershipLost(Unavailable):
    """A group that refuses its former member, which has to join again."""


class Unfit(RollcallError):
    """This process must not go on. It exits before the commit; a restart repeats the work."""


class JournalGone(Unfit):
    """Retention has passed the low watermark of a partition."""


class RequestsSkipped(Unfit):
    """The committed offset of the requests is beyond the last counted start."""


class TopicRecreated(Unfit):
    """A topic was deleted and created again since offsets were committed for it."""


class TopicsDiffer(Unfit):
    """Topics or schemas are missing, or differ from the manifest."""


class StoresDiffer(Unfit):
    """The object store of this process is not the one that holds the cluster's heavy records."""


class RegistryEmptied(Unfit):
    """A registry that has lost the schemas with which the log was written."""


class DeliveryFailed(Unfit):
    """The producer could not deliver a record."""


class DeadLetterStorm(Unfit):
    """Too much of the input is unreadable; an operator has to look at it first."""


class CanaryMismatch(Unfit):
    """A model server whose log-probabilities differ from the trainer's for the same weights."""


class EngineDied(Unfit):
    """A model engine whose processes do not start, or have ended."""


class RunSuperseded(Unfit):
    """Another trainer of the same run was first in the log; that one continues."""


class DiskFull(Unfit):
    """A disk without room for data that must be kept; the text says how much is needed."""


class EventLoopBlocked(Unfit):
    """Asynchronous code that blocks the event loop's thread and does not return."""
