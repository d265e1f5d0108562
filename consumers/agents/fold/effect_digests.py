"""Digests of the contents of effects: an answer fits the effect whose digest it carries."""

from collections.abc import Iterable
from hashlib import blake2b

from rollcall.consumers.agents.effects import CallModel, Reset, Step
from rollcall.consumers.agents.fold.conversation import Conversation
from rollcall.schemas.messages import Message, Sampling
from rollcall.schemas.messages import Task as WireTask


def environment_of(effect: Reset, task: WireTask) -> tuple[str, str, int]:
    """Return name, configuration and seed of the environment that a reset opens."""
    config = (
        task.environment_config if effect.environment_config is None else effect.environment_config
    )
    return (
        task.environment if effect.environment is None else effect.environment,
        config,
        task.seed if effect.seed is None else effect.seed,
    )


def digest_of(*parts: object) -> bytes:
    """Return the 16-byte digest of these parts."""
    return _digest("\0".join(map(str, parts)))


def _digest(spelt_out: str) -> bytes:
    return blake2b(spelt_out.encode(), digest_size=16).digest()


def call_digest(
    effect: CallModel,
    sequence: Conversation,
    new: Iterable[Message],
    policy_id: str,
    how: str,
) -> bytes:
    """Return the digest of a call: the prefix that it extends, its new
    messages, and its sampling `how`."""
    texts = "\1".join([f"{m.role}\0{m.content}\0{m.tool_calls}\0{m.tool_call_id}" for m in new])
    where = f"{policy_id}\0{sequence.index}\0{sequence.length}"
    begun = "" if sequence.answers or not sequence.begun else f"\0{sequence.packed().hex()}"
    return _digest(f"call\0{where}\0{how}\0{effect.tools or ''}\0{texts}{begun}")


def step_digest(effect: Step, applied: int) -> bytes:
    """Return the digest of a step that follows `applied` actions of its session."""
    return _digest(f"step\0{effect.session}\0{applied}\0{effect.action}")


def serialised_sampling(how: Sampling) -> str:
    """Return the sampling parameters that are part of a call's digest, as text."""
    return str((how.temperature, how.top_p, how.top_k, how.max_tokens, how.stop))
