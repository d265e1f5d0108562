"""What a wish says, as a digest: an answer fits the wish whose digest it carries."""

from collections.abc import Iterable
from hashlib import blake2b

from consumers.agents.fold.conversation import Conversation
from consumers.agents.wishes import CallModel, Reset
from schemas.messages import Message, Sampling
from schemas.messages import Task as WireTask


def environment_of(wish: Reset, task: WireTask) -> tuple[str, str, int]:
    """Name, configuration and seed of the environment that a reset opens."""
    config = task.environment_config if wish.environment_config is None else wish.environment_config
    return (
        task.environment if wish.environment is None else wish.environment,
        config,
        task.seed if wish.seed is None else wish.seed,
    )


def digest_of(*parts: object) -> bytes:
    """Names what is said by these parts, 16 bytes."""
    return blake2b("\0".join(map(str, parts)).encode(), digest_size=16).digest()


def call_digest(
    wish: CallModel,
    sequence: Conversation,
    new: Iterable[Message],
    policy_id: str,
    how: str,
) -> bytes:
    """Of a call as it stands: where it goes on from, what is new in it, `how` it is sampled."""
    said = "\1".join([f"{m.role}\0{m.content}\0{m.tool_calls}\0{m.tool_call_id}" for m in new])
    place = (policy_id, sequence.index, sequence.length, how, wish.tools or "", said)
    begun = () if sequence.answers or not sequence.begun else (sequence.begun.hex(),)
    return digest_of("call", *place, *begun)


def spelt(how: Sampling) -> str:
    """What of a sampling is part of a call's digest."""
    return str((how.temperature, how.top_p, how.top_k, how.max_tokens, how.stop))
