"""The requests of an agent's process as text: new messages, actions, its end."""

from collections.abc import Collection, Iterator

from rollcall.schemas.agent_requests import RequestDifference, differences_of
from rollcall.schemas.bounded import json_object
from rollcall.schemas.errors import WireError
from rollcall.schemas.messages import EnvironmentStepped
from rollcall.schemas.tool_calls import tool_calls_of

AGENT = "agent"
"""The session that the program `hosted` opens for its process."""
Said = tuple[str, str]
"""The content and the tool calls of an answer."""


def message_text(content: str, tool_calls: str) -> str:
    """Return the content of an assistant's message, and a line for each call."""
    try:
        calls = [f"calls {call.name} {call.arguments}" for call in tool_calls_of(tool_calls)]
    except WireError:  # of a client, not validated
        calls = [tool_calls]
    return "\n".join(filter(None, (content, *calls)))


def describe_requests(step: EnvironmentStepped, said: Collection[Said] = ()) -> str | None:
    """Return a line per request; None if this is no observation of an agent's process.

    Repetitions of answers that the policy has `said` are left out.
    """
    asked = describe_asked(step.session, step.text, said)
    if asked is not None and step.terminated:
        return "\n".join(filter(None, (asked, _end(step.info))))
    return "asks nothing more yet" if asked == "" else asked


def describe_asked(session: str, text: str, said: Collection[Said] = ()) -> str | None:
    """Return the requests of an observation, as above; empty if there are none."""
    if session != AGENT:
        return None
    try:
        told = differences_of(text)
    except WireError:
        return None
    return "\n".join(line for each in told for line in _lines(each, said))


def _lines(told: RequestDifference, said: Collection[Said]) -> Iterator[str]:
    if told.kind != "model":
        yield f"{'acts' if told.kind == 'step' else 'hands in'}: {told.text}"
        return
    for message in told.new:
        if message.role != "assistant" or (message.content, message.tool_calls) not in said:
            yield f"{message.role}: {message_text(message.content, message.tool_calls)}"
    if not told.new:
        yield f"asks again what it asked in {told.like[:8]}"


def _end(info: str) -> str:
    found = json_object(info or "{}") or {}
    code, signal = found.get("exit_code"), found.get("signal")
    return f"ended with code {code}" if signal is None else f"ended by signal {signal}"
