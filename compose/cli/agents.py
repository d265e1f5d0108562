"""`rollcall agents`: third-party agents, installed by name."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollcall.compose.cli.connection import settings
from rollcall.compose.terminal import say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollcall.compose.agents.agent_check import Played

Json = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]
Names = Annotated[list[str], typer.Argument(help="NAME or NAME==VERSION, one or more.")]
Name = Annotated[str, typer.Argument(help="An agent's name, as `rollcall agents list` has it.")]
Config = Annotated[
    str, typer.Option(help="The agent_config of a request, as JSON: what agents of yours need.")
]


def list_agents(json: Json = False) -> None:
    """Say which agents there are, and which of them are installed here.

    Example: rollcall agents list
    """
    from rollcall.compose.agents.installation import listing
    from rollcall.compose.pages.agents_page import print_agents
    from rollcall.compose.terminal import emit

    rows = listing(_home())
    emit(rows, lambda terminal: print_agents(terminal, rows), json=json)


def install(names: Names) -> None:
    """Install agents, each in an environment of its own, and try them.

    Example: rollcall agents install mini-swe-agent smolagents==1.26.0
    """
    from rollcall.compose.agents import installation

    for name, wanted in [installation.requirements(spec) for spec in names]:
        made, new = installation.install(_home(), name, wanted)
        if new:
            size = installation.size_bytes(made.directory)
            say(f"{name} {made.version} installed, {size / 1e6:,.0f} MB; trying it")
        if made.broken:
            _fail_where_wrong(name, _tried(name, {}))
        say(f"{name} {made.version} is ready")


def check(name: Name, config: Config = "{}", json: Json = False) -> None:
    """Run an agent at the gateway with a scripted model behind it, and print its requests.

    Example: rollcall agents check mini-swe-agent
    """
    from rollcall.compose.pages.agents_page import print_played
    from rollcall.compose.terminal import emit

    played = _tried(name, _parsed(config))
    emit(played, lambda terminal: print_played(terminal, played), json=json)
    _fail_where_wrong(name, played)


def _tried(name: str, config: "Mapping[str, Any]") -> "list[Played]":
    """Run an agent's trials, and record the result for the workers of this machine."""
    from rollcall.compose.agents.agent_check import check as play
    from rollcall.compose.agents.installation import mark
    from rollcall.sandbox.agents.shipped import check_agent, interpreter
    from rollcall.schemas.errors import Refused, WorkFailed

    check_agent({**config, "agent": name})
    try:
        interpreter(_home(), name, even_broken=True)
    except WorkFailed as error:
        raise Refused(str(error)) from error
    played = play(_home(), name, config)
    mark(_home(), name, played[-1].wrong)
    return played


def _fail_where_wrong(name: str, played: "list[Played]") -> None:
    if played[-1].wrong:
        say(f"rollcall: agent {name!r} failed its check: {played[-1].wrong}", err=True)
        raise typer.Exit(1)


def _parsed(config: str) -> "Mapping[str, Any]":
    import orjson

    from rollcall.schemas.errors import Refused

    try:
        found = orjson.loads(config)
    except orjson.JSONDecodeError as error:
        msg = f"--config is not JSON: {error}"
        raise Refused(msg) from error
    if not isinstance(found, dict):
        msg = f"--config must be a JSON object, found {config!r:.80}"
        raise Refused(msg)
    return found


def _home() -> Path:
    return settings().installed_agents()
