"""A policy that is a function of text: it gets the whole conversation and returns the answer.

    <|im_start|>system
    Be brief.

    # Tools
    ...<|im_end|>
    <|im_start|>user
    What is there?<|im_end|>
    <|im_start|>assistant
    <tool_call>
    {"name": "bash", "arguments": {"command": "ls"}}
    </tool_call><|im_end|>
    <|im_start|>tool
    <tool_response>
    notes.txt
    </tool_response><|im_end|>
    <|im_start|>assistant

Tools are written in the format `hermes` of `rollcall.inference.tools`. The function's own answers
appear unchanged. One token is one byte of UTF-8, so a sequence that only grows is a text that only
grows.
"""

import inspect
from collections.abc import Callable

from rollcall.inference.scripted import TOOLS, Script
from rollcall.inference.tools import FORMATS, with_tools_written
from rollcall.schemas import names
from rollcall.schemas.errors import FailureCode, Refused, WireError, WorkFailed
from rollcall.schemas.interrupts import is_from_outside
from rollcall.schemas.messages import ModelCall
from rollcall.schemas.packed import ids_of
from rollcall.schemas.untrusted_text import clean_text, describe_exception

Speak = Callable[..., str]
"""A function of the conversation, and of the call's `seed` if it has such a parameter."""
OPEN, CLOSE = "<|im_start|>", "<|im_end|>\n"
ANSWER = f"{OPEN}assistant\n"


def load_script(reference: str) -> Speak:
    """Import `module:function`. Raises Refused, also where it cannot be called with a text."""
    function = names.load("script", reference)
    if inspect.iscoroutinefunction(function):
        msg = f"script {reference!r} is `async def`; a script answers at once"
        raise Refused(msg)
    try:
        inspect.signature(function).bind("", **_seeds(function, 0))
    except (TypeError, ValueError) as error:
        msg = f"script {reference!r} cannot be called with one text, the conversation: {error}"
        raise Refused(msg) from error
    return function


def added_by(call: ModelCall) -> str:
    """Return the text that a call adds to the conversation, up to the beginning of the answer.

    Raises WorkFailed(`not_renderable`).
    """
    first = not call.prefix_length
    if not first and not call.messages:
        return ""
    try:
        messages = with_tools_written(FORMATS[TOOLS], call.messages, call.tools if first else "")
    except WireError as error:
        raise WorkFailed(FailureCode.NOT_RENDERABLE, str(error), retriable=False) from error
    turns = (f"{OPEN}{message.role}\n{message.content}{CLOSE}" for message in messages)
    return ("" if first else CLOSE) + "".join(turns) + ANSWER


def text_script(speak: Speak, name: str) -> Script:
    """Return the script of a scripted engine that calls a function of text.

    An exception of it, or a result that is no text, fails its call without a retry.
    """

    def script(call: ModelCall) -> str:
        conversation = _known(call) + added_by(call)
        try:
            said = speak(conversation, **_seeds(speak, call.seed))
        except BaseException as error:
            if is_from_outside(error):
                raise
            msg = f"script {name!r} raised: {describe_exception(error)}"
            raise WorkFailed(FailureCode.SCRIPT_FAILED, msg, retriable=False) from error
        if not isinstance(said, str):
            msg = f"script {name!r} said {type(said).__name__}; it must say text"
            raise WorkFailed(FailureCode.SCRIPT_FAILED, msg, retriable=False)
        return clean_text(said)

    return script


def _seeds(speak: Speak, seed: int) -> dict[str, int]:
    """Return the arguments of a function beside the conversation."""
    return {"seed": seed} if "seed" in inspect.signature(speak).parameters else {}


def _known(call: ModelCall) -> str:
    try:
        return bytes(ids_of(call.prefix_ids or b"").tolist()).decode("utf-8", "replace")
    except ValueError:
        msg = "a script reads bytes, and the sequence was begun by a policy whose tokens are none"
        raise WorkFailed(FailureCode.BAD_PREFIX, msg, retriable=False) from None
