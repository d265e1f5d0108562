"""`rollcall up`, `down`, `status`: the embedded broker and registry."""

from typing import Annotated

import typer

from compose.cli.connection import settings
from compose.terminal import say


def up(
    kafka_port: Annotated[int | None, typer.Option(help="Free when left out.")] = None,
    registry_port: Annotated[int | None, typer.Option(help="Free when left out.")] = None,
) -> None:
    """Start the embedded broker and schema registry; does nothing where they are up."""
    from compose.cluster import answers
    from compose.log_setup import set_up
    from compose.services.embedded import up as bring_up

    set_up("cli", "cli")
    here = settings()
    services = bring_up(
        here.state(),
        here.cache(),
        kafka_port=kafka_port,
        registry_port=registry_port,
        ready=answers,
    )
    say(f"kafka     {services.bootstrap_servers}  (pid {services.kafka_pid})")
    say(f"registry  {services.registry_url}  (pid {services.registry_pid})")
    say("next: `rollcall run lake-any-start` trains a policy, `rollcall serve` serves one,")
    say("      `rollcall topics apply` makes the topics for workers of your own")


def down(
    wipe: Annotated[bool, typer.Option(help="Remove the log and the registry's data.")] = False,
) -> None:
    """Stop the embedded broker and registry; leaves no process behind.

    Workers of theirs leave too, and end their agents first; what they had in hand stays in the log.
    """
    from compose.log_setup import set_up
    from compose.services.embedded import down as take_down

    set_up("cli", "cli")
    stopped = take_down(settings().state(), wipe=wipe)
    for service in stopped:
        say(f"stopped {service.name} (pid {service.pid})")
    if not stopped:
        say("nothing was running")
    if wipe:
        say("removed the log and the registry's data")


def status() -> None:
    """Say what is up; exit code 1 when something is not."""
    from compose.log_setup import set_up
    from compose.services.embedded import status as ask

    set_up("cli", "cli")
    services = ask(settings().state())
    for service in services:
        where = f"{service.address}  (pid {service.pid})" if service.pid else "not running"
        say(f"{service.name:<9} {where}")
        if service.name == "kafka" and service.address:
            say(f"topics    {_partitions(service.address)}")
    if not all(service.pid for service in services):
        raise typer.Exit(1)


def _partitions(servers: str) -> str:
    """How many a broker keeps: each costs it files and memory, used or not."""
    from producers.admin import Admin
    from schemas.errors import Unavailable

    try:
        counts = Admin({"bootstrap.servers": servers}, timeout_s=5.0).partitions()
    except Unavailable as error:
        return str(error)
    return f"{len(counts)}, with {sum(counts.values())} partitions"
