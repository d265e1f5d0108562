"""What an agent's process asks, as people are shown it: new messages, actions, its end."""

from collections.abc import Iterator

import orjson

from schemas.asks import AskDifference, differences_of
from schemas.errors import WireError
from schemas.messages import EnvironmentStepped

AGENT = "agent"
"""The session that the program `hosted` opens for its process."""


def agent_words(step: EnvironmentStepped) -> str | None:
    """What was asked, a line for each; None where this is no observation of a process."""
    if step.session != AGENT:
        return None
    try:
        told = differences_of(step.text)
    except WireError:
        return None
    lines = [line for each in told for line in _lines(each)]
    if step.terminated:
        lines.append(_end(step.info))
    return "\n".join(lines) or "asks nothing more yet"


def _lines(told: AskDifference) -> Iterator[str]:
    if told.kind != "model":
        yield f"{'acts' if told.kind == 'step' else 'hands in'}: {told.text}"
        return
    for message in told.new:
        said = "; ".join(filter(None, (message.content, message.tool_calls)))
        yield f"{message.role}: {said}"
    if not told.new:
        yield f"asks again what it asked in {told.like[:8]}"


def _end(info: str) -> str:
    found = orjson.loads(info or "{}")
    code, signal = found.get("exit_code"), found.get("signal")
    return f"ended with code {code}" if signal is None else f"ended by signal {signal}"
