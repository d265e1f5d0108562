"""The agents by name, their options, and the Python that each one runs in."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollcall.schemas.errors import FailureCode, Refused, WorkFailed
from rollcall.schemas.names import hint, unknown_name

ADAPTERS = Path(__file__).parent / "adapters"
POINTER = "installed.json"
"""The file in an agent's folder that names its current environment. It is written last, so an
incomplete one is never used."""


@dataclass(frozen=True, slots=True)
class ShippedAgent:
    """An agent that has an adapter."""

    adapter: str
    """The name of its file in `sandbox/agents/adapters`, without `.py`."""
    summary: str
    requirements: tuple[str, ...] = ()
    """Requirements for the package index, the agent itself first; empty if nothing is installed."""
    options: Mapping[str, Callable[[object], str]] = field(default_factory=dict)
    """Required keys of `agent_config`, each with a check that returns the expected form or ''."""


def _is_function(value: object) -> str:
    file, _, name = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    return "" if file.endswith(".py") and name.isidentifier() else "'FILE.py:FUNCTION'"


def _is_argv(value: object) -> str:
    words = value if isinstance(value, list) else []
    right = words and words[0] and all(isinstance(word, str) for word in words)
    return "" if right else "a list of words such as ['python3', 'agent.py']"


SHIPPED: Mapping[str, ShippedAgent] = {
    "mini-swe-agent": ShippedAgent(
        "mini_swe_agent",
        "chat completions; its commands are steps of the task's environment",
        ("mini-swe-agent>=2.4.6,<2.5", "litellm[mcp]>=1.106,<2"),
    ),
    "openai-agents": ShippedAgent(
        "openai_agents",
        "Responses; chat completions with api = 'chat', as a stream with api = 'chat_stream'",
        ("openai-agents>=0.24,<0.25",),
    ),
    "smolagents": ShippedAgent(
        "smolagents_code",
        "chat completions with content in parts and stop lists",
        ("smolagents[openai]>=1.26,<1.27",),
    ),
    "python": ShippedAgent(
        "python_function",
        "a function in a file of yours, called with (task, url, key)",
        options={"function": _is_function},
    ),
    "command": ShippedAgent(
        "plain_command",
        "a program of yours, told by its environment where to ask",
        options={"argv": _is_argv},
    ),
}


def check_agent(config: Mapping[str, Any]) -> None:
    """Refuse the config of a hosted rollout for an unknown agent. Raises Refused.

    It does not check that the agent is installed: only the workers know that.
    """
    name = config.get("agent")
    if not isinstance(name, str):
        msg = f"agent_config.agent is {name!r}; it names the agent to host: {hint('', SHIPPED)}"
        raise Refused(msg)
    if name not in SHIPPED:
        raise unknown_name("agent", name, SHIPPED)
    for option, wrong in SHIPPED[name].options.items():
        expected = wrong(config.get(option))
        if expected:
            found = f"{config.get(option)!r:.80}"
            msg = f"agent {name!r} needs agent_config.{option}, {expected}; found {found}"
            raise Refused(msg)
    python = config.get("python", "")
    if not isinstance(python, str) or (python and SHIPPED[name].requirements):
        msg = (
            f"agent_config.python is {python!r:.80}; it is the interpreter of a function of yours, "
            f"and agent {name!r} has its own"
        )
        raise Refused(msg)


@dataclass(frozen=True, slots=True)
class InstalledAgent:
    """An agent's own environment, as its pointer file records it."""

    directory: Path
    version: str
    requirements: tuple[str, ...]
    broken: str = ""
    """The failure of its last check; empty if it passed."""

    @property
    def interpreter(self) -> Path:
        return self.directory / "bin" / "python"


def installed_agent(home: Path, name: str) -> InstalledAgent | None:
    """Return the environment installed for a name in the folder of all agents, or None."""
    try:
        found = json.loads((home / name / POINTER).read_bytes())
        place = InstalledAgent(
            home / name / found["directory"],
            found["version"],
            tuple(found["requirements"]),
            found["broken"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return place if place.interpreter.exists() else None


def interpreter(home: Path, name: str, python: str = "", *, even_broken: bool = False) -> Path:
    """Return an agent's Python. Raises WorkFailed(`agent_missing`) with the remedy."""
    if not SHIPPED[name].requirements:
        return Path(python or sys.executable)
    here = installed_agent(home, name)
    if here is None:
        msg = (
            f"agent {name!r} is not installed on this worker; run `rollcall agents install {name}`"
        )
        raise missing(msg)
    if here.broken and not even_broken:
        todo = f"see `rollcall agents check {name}`"
        wrong = f"agent {name!r} {here.version} failed its check: {here.broken}; {todo}"
        raise missing(wrong)
    return here.interpreter


def missing(message: str) -> WorkFailed:
    """Return the error for an agent that is not installed; it is not retriable."""
    return WorkFailed(FailureCode.AGENT_MISSING, message, retriable=False)
