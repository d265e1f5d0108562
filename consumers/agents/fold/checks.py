"""Checks of the values that a program yields. A value that cannot be serialised must end its
rollout here: later it would end the worker. Every check raises ProgramFailed(`rubbish`)."""

from collections.abc import Iterable, Sequence

from rollcall.consumers.agents.effects import (
    EFFECTS,
    AsCompleted,
    Begun,
    CallModel,
    Finish,
    Recalled,
    Reset,
    Step,
)
from rollcall.schemas.errors import FailureCode, ProgramFailed
from rollcall.schemas.messages import Message, Sampling
from rollcall.schemas.untrusted_text import clean_text, describe_value

RESULT_CHARS = 200_000
"""The largest result that fits into the journal; a larger one belongs into a file."""


def check_effects(
    yielded: object, program_name: str, position: int
) -> Sequence[Reset | CallModel | Step]:
    """Return the effects of a yielded list."""
    effects = yielded if isinstance(yielded, list | tuple) else ()
    if not effects or any(not isinstance(effect, EFFECTS) for effect in effects):
        msg = (
            f"program {program_name!r} yielded {describe_value(yielded)} at position {position}; "
            "it may yield CallModel, Step, Reset, Finish, a list, or AsCompleted"
        )
        raise ProgramFailed(FailureCode.RUBBISH, msg)
    return effects


def check_as_completed(
    yielded: AsCompleted, open_: Iterable[object], program_name: str, position: int
) -> Sequence[Reset | CallModel | Step]:
    """Return its effects, possibly none, after checking them against the open ones."""
    if isinstance(yielded.wishes, list | tuple) and not yielded.wishes:
        return ()
    effects = check_effects(yielded.wishes, program_name, position)
    busy = {effect.session for effect in open_ if isinstance(effect, Reset | Step)}
    for effect in effects:
        if isinstance(effect, CallModel):
            continue
        if effect.session in busy:
            msg = (
                f"program {program_name!r} has two effects of session {effect.session!r} open; "
                "wait for the first outcome before the second is yielded"
            )
            raise ProgramFailed(FailureCode.RUBBISH, msg)
        busy.add(effect.session)
    return effects


def check_finish(finish: Finish) -> Finish:
    """Return the Finish with a result that can be written; raises
    ProgramFailed(`result_too_large`), and (`rubbish`) for malformed conversations."""
    recalled = finish.recalled
    if not isinstance(recalled, (list, tuple)) or not all(map(_is_recalled, recalled)):
        described = describe_value(finish)
        msg = f"Finish needs as recalled conversations with all their tokens, found {described}"
        raise ProgramFailed(FailureCode.RUBBISH, msg)
    for each in recalled:
        check_messages(each.messages)
    result = (
        clean_text(finish.result)
        if isinstance(finish.result, str)
        else describe_value(finish.result)
    )
    if len(result) > RESULT_CHARS:
        msg = f"the result has {len(result):,} characters, more than {RESULT_CHARS:,}"
        raise ProgramFailed(FailureCode.RESULT_TOO_LARGE, msg)
    return Finish(result, tuple(recalled))


def check_call(effect: CallModel) -> None:
    """Check everything but the messages themselves."""
    messages, how = effect.messages, effect.sampling
    if not isinstance(messages, (list, tuple)) or not messages:
        msg = f"CallModel needs a list of Message, found {describe_value(messages)}"
        raise ProgramFailed(FailureCode.RUBBISH, msg)
    if effect.begun is not None and not _is_begun(effect.begun, len(messages)):
        described = describe_value(effect)
        msg = f"CallModel needs as begun whole tokens of its first messages, found {described}"
        raise ProgramFailed(FailureCode.RUBBISH, msg)
    if not _is_text("" if effect.tools is None else effect.tools, effect.policy_id or ""):
        msg = f"CallModel needs texts as policy_id and tools, found {describe_value(effect)}"
        raise ProgramFailed(FailureCode.RUBBISH, msg)
    if how is not None and not (
        isinstance(how, Sampling)
        and isinstance(how.temperature, int | float)
        and isinstance(how.top_p, int | float)
        and _is_whole(how.top_k, 32)
        and _is_whole(how.max_tokens, 32)
        and isinstance(how.stop, list | tuple)
        and _is_text(*how.stop)
    ):
        msg = f"CallModel needs a Sampling, found {describe_value(how)}"
        raise ProgramFailed(FailureCode.RUBBISH, msg)


def check_messages(messages: Sequence[object]) -> None:
    for m in messages:
        if not isinstance(m, Message) or not _is_text(
            m.role, m.content, m.tool_calls, m.tool_call_id, m.name
        ):
            msg = f"CallModel needs a list of Message made of texts, found {describe_value(m)}"
            raise ProgramFailed(FailureCode.RUBBISH, msg)


def check_reset(effect: Reset, name: str, config: str, seed: int) -> None:
    """Check a reset, given the name, configuration and seed that it resolves to."""
    if not _is_text(effect.session, name, config) or not _is_whole(seed, 64):
        msg = f"Reset needs texts and a 64-bit seed, found {describe_value(effect)}"
        raise ProgramFailed(FailureCode.RUBBISH, msg)


def check_step(effect: Step) -> None:
    if not _is_text(effect.session, effect.action):
        msg = f"Step needs texts that can be written as UTF-8, found {describe_value(effect)}"
        raise ProgramFailed(FailureCode.RUBBISH, msg)


def _is_text(*values: object) -> bool:
    """Return True for strings that can be written as UTF-8; a lone surrogate cannot."""
    try:
        for value in values:
            if not isinstance(value, str):
                return False
            if not value.isascii():  # the cheap check first
                value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_whole(value: object, bits: int) -> bool:
    return isinstance(value, int) and -(1 << bits - 1) <= value < 1 << bits - 1


def _is_begun(begun: object, messages: int) -> bool:
    """Return True for the tokens of fewer messages than the call has."""
    return (
        isinstance(begun, Begun)
        and isinstance(begun.ids, bytes)
        and len(begun.ids) >= 4
        and len(begun.ids) % 4 == 0
        and _is_whole(begun.messages, 32)
        and 0 < begun.messages < messages
        and _is_recorded(begun, len(begun.ids) // 4)
    )


def _is_recorded(begun: Begun, tokens: int) -> bool:
    """Return True if mask, log-probabilities and versions are given for
    every token, or for none."""
    columns = (begun.mask, begun.logprobs, begun.versions)
    return (
        all(isinstance(column, bytes) for column in columns)
        and [len(column) for column in columns] in ([0, 0, 0], [tokens, 4 * tokens, 4 * tokens])
        and set(begun.mask) <= {0, 1}
        and isinstance(begun.samplings, tuple)
        and all(isinstance(each, Sampling) for each in begun.samplings)
    )


def _is_recalled(recalled: object) -> bool:
    """Return True for a conversation with the tokens of all its messages."""
    return (
        isinstance(recalled, Recalled)
        and isinstance(recalled.messages, (list, tuple))
        and (recalled.policy_id is None or _is_text(recalled.policy_id))
        and _is_begun(recalled.begun, len(recalled.messages) + 1)
        and recalled.begun.messages == len(recalled.messages)
    )
