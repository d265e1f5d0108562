"""`rollcall agents`: third-party agents, installed by name."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from rollcall.compose.cli.connection import settings
from rollcall.compose.terminal import one_line, say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from rollcall.compose.agents.agent_check import Played
    from rollcall.compose.agents.installation import ListedAgent


Json = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]
Names = Annotated[list[str], typer.Argument(help="NAME or NAME==VERSION, one or more.")]
Name = Annotated[str, typer.Argument(help="An agent's name, as in `rollcall agents list`.")]
Config = Annotated[
    str, typer.Option(help="The agent_config of a request, as JSON, for agents of your own.")
]


def list_agents(json: Json = False) -> None:
    """List the known agents, and which of them are installed on this machine.

    Example: rollcall agents list
    """
    from rollcall.compose.agents.installation import listing
    from rollcall.compose.terminal import emit

    rows = listing(_home())
    emit(rows, lambda terminal: print_agents(terminal, rows), json=json)


def install(names: Names) -> None:
    """Install agents, each in an environment of its own, and check them.

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


def print_agents(terminal: "Console", rows: "Sequence[ListedAgent]") -> None:
    table = Table("agent", "version", "state", "asks by", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row.name, row.version, row.state, row.summary)
    terminal.print(table)


def print_played(terminal: "Console", played: "Sequence[Played]") -> None:
    """Print the requests of each trial, in order."""
    for trial in played:
        words = [f"{name} = {value!r}" for name, value in trial.config.items()]
        terminal.print(one_line(", ".join(words)), markup=False)
        threads = "" if trial.threads <= 1 else f", {trial.threads} threads before the fork"
        terminal.print(f"  imported in {trial.import_s:.1f} s{threads}")
        for call in trial.calls:
            terminal.print(f"  {one_line(call)}", markup=False)
        for request in trial.declined:
            terminal.print(f"  declined {one_line(request)}", markup=False)
        if not trial.calls:
            terminal.print("  made no model call")
        for action in trial.actions:
            terminal.print(f"  step {one_line(action)!r}", markup=False)
        if trial.result is not None:
            terminal.print(f"  result {one_line(trial.result)!r}", markup=False)
        terminal.print(f"  {'failed' if trial.wrong else 'ended well'}")
