"""`rollcall up`, `down`, `status`: the embedded broker and registry."""

from typing import TYPE_CHECKING, Annotated

import typer

from rollcall.compose.cli.connection import settings
from rollcall.compose.terminal import say

if TYPE_CHECKING:
    from rollcall.compose.settings import Settings


def up(
    kafka_port: Annotated[int | None, typer.Option(help="Default: any free port.")] = None,
    registry_port: Annotated[int | None, typer.Option(help="Default: any free port.")] = None,
) -> None:
    """Start the embedded broker and schema registry, unless they are running."""
    from rollcall.compose.cluster import answers
    from rollcall.compose.log_setup import set_up
    from rollcall.compose.services.embedded import up as bring_up

    set_up("cli", "cli")
    here = settings()
    services = bring_up(
        here.state(),
        here.cache(),
        kafka_port=kafka_port,
        registry_port=registry_port,
        ready=answers,
        tell=lambda words: typer.echo(words, err=True),
    )
    say(f"kafka     {services.bootstrap_servers}  (pid {services.kafka_pid})")
    say(f"registry  {services.registry_url}  (pid {services.registry_pid})")
    say("next: `rollcall run lake-any-start` trains a policy, `rollcall serve` serves one,")
    say("      `rollcall topics apply` makes the topics for workers of your own")


def down(
    wipe: Annotated[bool, typer.Option(help="Remove the log and the registry's data.")] = False,
) -> None:
    """Stop the embedded broker and registry, and the workers that use them.

    Workers end their agents first. Unfinished work stays in the log.
    """
    from rollcall.compose.log_setup import set_up
    from rollcall.compose.services.embedded import down as take_down

    set_up("cli", "cli")
    stopped = take_down(settings().state(), wipe=wipe)
    for service in stopped:
        say(f"stopped {service.name} (pid {service.pid})")
    if not stopped:
        say("nothing was running")
    if wipe:
        say("removed the log and the registry's data")


def status() -> None:
    """Check that the configured broker and registry, or those of `rollcall up`, answer.

    The exit code is 1 if one of them does not.
    """
    from rollcall.compose.log_setup import set_up

    set_up("cli", "cli")
    here = settings()
    if here.kafka.bootstrap_servers or here.registry.url:
        up_there = _configured(here)
    else:
        up_there = _embedded(here)
    if not up_there:
        raise typer.Exit(1)


def _embedded(here: "Settings") -> bool:
    """Print the state of this state directory's processes; return True if both live."""
    from rollcall.compose.services.embedded import status as ask

    services = ask(here.state())
    answers = []
    for service in services:
        where = f"{service.address}  (pid {service.pid})" if service.pid else "not running"
        say(f"{service.name:<9} {where}")
        if service.name == "kafka" and service.address:
            # With the clients' settings, so that errors in these show up here.
            own = {"bootstrap.servers": service.address}
            answers.append(_say_topics(own | here.kafka.client))
    return all(service.pid for service in services) and all(answers)


def _configured(here: "Settings") -> bool:
    """Ping the addresses in the settings; return True if all answer."""
    from rollcall.compose.cluster import cluster_of
    from rollcall.schemas.errors import RollcallError

    cluster = cluster_of(here)
    say(f"kafka     {cluster.bootstrap_servers}")
    broker = _say_topics(cluster.client)
    try:
        levels = cluster.registry.compatibility(cluster.topics.events)
    except RollcallError as error:
        say(f"registry  {cluster.registry_url}  {error}")
        return False
    say(f"registry  {cluster.registry_url}  answers (level of the journal: {levels})")
    return broker


def _say_topics(client: "dict[str, str]") -> bool:
    """Print the broker's topics, partitions (each costs files and memory) and groups."""
    from rollcall.producers.admin import Admin
    from rollcall.schemas.errors import Unavailable

    try:
        admin = Admin(client, timeout_s=5.0)
        counts, groups = admin.partitions(), admin.groups()
    except Unavailable as error:
        say(f"topics    {error}")
        return False
    say(f"topics    {len(counts)}, with {sum(counts.values())} partitions")
    say(f"groups    {len(groups)}")
    return True
