"""Our errors, sorted by what happens next. Only errors of this tree are caught on purpose.

RollcallError
  + Refused          bad input at the door                  -> one clear line, exit code 2
  + WireError        bytes that no schema of ours can read  -> dead.letters, and on
      + BadMagic, UnknownSchema, BadBytes, LengthsDisagree, WeightsDiffer, NoSuchPartition,
        KilledWorkers, Skipped, ObjectLost
          + WrongSchema
  + WorkFailed       one command cannot be done             -> CallFailed, the fold decides
      + TooLarge, NoTopic
  + RolloutBroken    one rollout cannot go on               -> a new attempt, or RolloutFinished
      + DeterminismError   its program asks for something else than its journal says
      + ProgramFailed      its program raised, yielded rubbish, or never ended
  + BatchFailed      one batch cannot be trained on         -> dropped with a reason, the next
  + Unavailable      a service is away                      -> wait, say so once, try again
      + RegistryDiffers, StoreUnavailable, WeightsMissing, MembershipLost
  + Unfit            this process must not go on            -> exit before the commit
      + JournalGone, RequestsSkipped, TopicRecreated, TopicsDiffer, StoresDiffer,
        RegistryEmptied, DeliveryFailed, DeadLetterStorm, EventLoopBlocked, DiskFull,
        CanaryMismatch, EngineDied, RunSuperseded
"""

from rollcall.schemas.redaction import redact
from rollcall.schemas.untrusted_text import REASON_CHARS, clean_text


class RollcallError(Exception):
    """The root of the tree; the text is for people, and no secret stands in it."""

    def __init__(self, *words: object) -> None:
        super().__init__(*(redact(w) if isinstance(w, str) else w for w in words))


class Refused(RollcallError):
    """Input that is turned away at the door: which thing, what was found, what to do."""


class WireError(RollcallError):
    """Bytes that cannot be read; they are buried as they are."""


class BadMagic(WireError):
    """A value that does not begin with the Confluent prefix."""

    def __init__(self, found: bytes) -> None:
        super().__init__(
            f"the value begins with {found!r}, not with byte 0 and a 4-byte schema id; "
            "was it written without the Confluent wire format?"
        )


class UnknownSchema(WireError):
    """A schema that this process does not know, or cannot read with its own; another one may."""


class WrongSchema(UnknownSchema):
    """A schema of another record, or none at all: nobody reads the value as what belongs here."""


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
    """A record that somebody decided to pass over, whether or not it can be read."""


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
    """A record that one worker after another died of; nobody takes it any more."""


class WorkFailed(RollcallError):
    """One command cannot be done; `code` is one of CallFailed's. Its text can be written down."""

    def __init__(self, code: str, message: str, *, retriable: bool) -> None:
        super().__init__(clean_text(message, REASON_CHARS))
        self.code = code
        self.retriable = retriable


class TooLarge(WorkFailed):
    """A record that its topic would refuse. Claim checks come later; until then it is a failure."""

    def __init__(self, topic: str, size_bytes: int, limit_bytes: int | None = None) -> None:
        limit = "its topic has now" if limit_bytes is None else f"of {limit_bytes:,}"
        super().__init__(
            "too_large",
            f"a record of {size_bytes:,} bytes for {topic} is above the limit {limit}; "
            "shorten the rollout or its observations",
            retriable=False,
        )


class NoTopic(WorkFailed):
    """A record whose topic, or whose partition of it, is not there, or not for us."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(
            "no_topic",
            f"nothing can be written to {topic}: {reason}; look at it with `rollcall topics plan`",
            retriable=False,
        )


class RolloutBroken(RollcallError):
    """One rollout cannot go on; the worker lives on."""


class DeterminismError(RolloutBroken):
    """A program that asks something else than its journal answers."""


class ProgramFailed(RolloutBroken):
    """A program that raised, yielded rubbish, or never ended; `code` says which.

    Its text can be written down.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(clean_text(message, REASON_CHARS))
        self.code = code


class BatchFailed(RollcallError):
    """A batch whose arithmetic raises; the weights are those before it."""


class Unavailable(RollcallError):
    """A broker or registry that does not answer now; whoever waits says so once."""


class RegistryDiffers(Unavailable):
    """A registry that gives a schema id another meaning than it had; nothing it says counts."""


class StoreUnavailable(Unavailable):
    """A store of objects or weights that does not answer."""


class WeightsMissing(Unavailable):
    """A weights file that is not there: not copied yet, or deleted already."""


class MembershipLost(Unavailable):
    """A group that refuses a member: its membership has ended, and it has to join again."""


class Unfit(RollcallError):
    """This process must not go on; it exits before the commit and a restart does the work again."""


class JournalGone(Unfit):
    """Retention has passed the low watermark of a partition."""


class RequestsSkipped(Unfit):
    """The requests' position lies beyond the last counted start."""


class TopicRecreated(Unfit):
    """A topic is not the one that offsets were committed for."""


class TopicsDiffer(Unfit):
    """Topics or schemas are missing, or are not what the manifest says."""


class StoresDiffer(Unfit):
    """The object store of this process is not the one that the cluster's heavy records lie in."""


class RegistryEmptied(Unfit):
    """A registry that does not know the schemas which the log was written with."""


class DeliveryFailed(Unfit):
    """The producer gave a record up."""


class DeadLetterStorm(Unfit):
    """So much input is unreadable that somebody has to look first."""


class CanaryMismatch(Unfit):
    """A model server cannot make its weights score as the trainer's do."""


class EngineDied(Unfit):
    """A model engine whose own processes do not start, or are gone."""


class RunSuperseded(Unfit):
    """Another trainer of the same run came first in the log, and goes on."""


class DiskFull(Unfit):
    """No room for what has to be kept before anything goes on; says what is needed."""


class EventLoopBlocked(Unfit):
    """Code that was to wait keeps everybody's thread to itself, and does not come back."""
