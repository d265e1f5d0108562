"""The command line. Every command imports what it needs when it runs, so `--help` is quick.

Exit codes: 0 done, 1 something failed, 2 refused at the door, 130 interrupted.
"""

import os
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from compose.cli.archive_commands import add_to as add_archive_commands
from compose.cli.control_commands import add_to as add_control_commands
from compose.cli.history_commands import add_to as add_history_commands
from compose.cli.lineage_commands import add_to as add_lineage_commands
from compose.cli.objects_commands import add_to as add_objects_commands
from compose.cli.runs_commands import add_to as add_runs_commands
from compose.extras import EXTRAS, not_installed, require
from schemas.interrupts import tell_apart

if TYPE_CHECKING:
    from compose.cluster import Cluster
    from compose.settings import Settings
    from compose.workers.build import Workshop
    from compose.workers.shutdown import Stop

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Agentic reinforcement learning for language models on Apache Kafka.",
)
# Newer typers bring a click of their own, whose errors are not those of the package `click`.
USAGE: Any = next(kind for kind in typer.BadParameter.mro() if kind.__name__ == "ClickException")
topics_app = typer.Typer(no_args_is_help=True, help="Provision topics and schemas.")
worker_app = typer.Typer(no_args_is_help=True, help="Run one process of a group.")
app.add_typer(topics_app, name="topics")
app.add_typer(worker_app, name="worker")

PANELS = {
    "Start": "demo run serve up down status topics worker submit publish-policy export-policy",
    "Look": "tail trajectory waiting runs curve objects",
    "Steer": "cancel pause resume drain dlq scorings",
    "Read again": "eval rescore replay retrain fork export query",
    "Check": "verify chaos bench",
}
"""Where `--help` shows each command; in this order."""

Name = Annotated[str, typer.Option(help="What the worker is called in logs and events.")]
Accept = Annotated[
    bool,
    typer.Option(
        "--accept-truncation/--no-accept-truncation",
        help="Go on from what is still there when retention has passed this group's position.",
    ),
]
Policies = Annotated[list[str] | None, typer.Option("--policy", help="A policy id; repeatable.")]
Partitions = Annotated[int | None, typer.Option(min=1, help="Partitions of every topic above one.")]
Big = Annotated[bool, typer.Option("--cluster", help="Counts and replication for a cluster.")]


def _say_version(asked: bool) -> None:
    from importlib.metadata import version

    if asked:
        typer.echo(f"rollcall {version('rollcall')}")
        raise typer.Exit


@app.callback()
def rollcall(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_say_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
) -> None:
    """Agentic reinforcement learning for language models on Apache Kafka."""


def settings() -> "Settings":
    from compose.settings import load_settings

    return load_settings()


def cluster() -> "Cluster":
    from compose.cluster import cluster_of
    from compose.log_setup import set_up

    set_up("cli", "cli")
    return cluster_of(settings())


# Services


@app.command()
def up(
    kafka_port: Annotated[int | None, typer.Option(help="Free when left out.")] = None,
    registry_port: Annotated[int | None, typer.Option(help="Free when left out.")] = None,
) -> None:
    """Start the embedded broker and schema registry; does nothing where they are up."""
    from compose.cluster import answers
    from compose.services.embedded import up as bring_up

    given = settings()
    found = bring_up(
        given.state(),
        given.cache(),
        kafka_port=kafka_port,
        registry_port=registry_port,
        ready=answers,
    )
    typer.echo(f"kafka     {found.bootstrap_servers}  (pid {found.kafka_pid})")
    typer.echo(f"registry  {found.registry_url}  (pid {found.registry_pid})")
    typer.echo("next: `rollcall run lake-any-start` trains a policy, `rollcall serve` serves one,")
    typer.echo("      `rollcall topics apply` makes the topics for workers of your own")


@app.command()
def down(
    wipe: Annotated[bool, typer.Option(help="Remove the log and the registry's data.")] = False,
) -> None:
    """Stop the embedded broker and registry; leaves no process behind."""
    from compose.services.embedded import down as take_down

    stopped = take_down(settings().state(), wipe=wipe)
    for service in stopped:
        typer.echo(f"stopped {service.name} (pid {service.pid})")
    if not stopped:
        typer.echo("nothing was running")
    if wipe:
        typer.echo("removed the log and the registry's data")


@app.command()
def status() -> None:
    """Say what is up; exit code 1 when something is not."""
    from compose.services.embedded import status as ask

    found = ask(settings().state())
    for service in found:
        where = f"{service.address}  (pid {service.pid})" if service.pid else "not running"
        typer.echo(f"{service.name:<9} {where}")
        if service.name == "kafka" and service.address:
            typer.echo(f"topics    {_partitions(service.address)}")
    if not all(service.pid for service in found):
        raise typer.Exit(1)


def _partitions(servers: str) -> str:
    """How many a broker keeps: each costs it files and memory, used or not."""
    from producers.admin import Admin
    from schemas.errors import Unavailable

    try:
        found = Admin({"bootstrap.servers": servers}, timeout_s=5.0).partitions()
    except Unavailable as error:
        return str(error)
    return f"{len(found)}, with {sum(found.values())} partitions"


# Topics


def _provision(policies: list[str] | None, partitions: int | None, big: bool) -> tuple[Any, ...]:
    from schemas.topics import wanted

    here = cluster()
    topics = wanted(here.settings.prefix, policies or [], cluster=big, partitions=partitions)
    return here.admin, here.registry, topics


@topics_app.command("plan")
def topics_plan(policy: Policies = None, partitions: Partitions = None, big: Big = False) -> None:
    """Print what `apply` would change."""
    from producers import provision

    changes = provision.plan(*_provision(policy, partitions, big))
    for change in changes:
        typer.echo(change.text)
    typer.echo(f"{len(changes)} changes" if changes else "nothing to change")


@topics_app.command("apply")
def topics_apply(policy: Policies = None, partitions: Partitions = None, big: Big = False) -> None:
    """Create and alter topics, register schemas; changes nothing the second time."""
    from producers import provision

    changes = provision.apply(*_provision(policy, partitions, big))
    for change in changes:
        typer.echo(change.text)
    typer.echo(f"{len(changes)} changes made" if changes else "nothing to change")


@topics_app.command("diff")
def topics_diff(policy: Policies = None, partitions: Partitions = None, big: Big = False) -> None:
    """Like plan, with exit code 1 where the cluster differs from the manifest."""
    from producers import provision

    changes = provision.plan(*_provision(policy, partitions, big))
    for change in changes:
        typer.echo(change.text)
    raise typer.Exit(1 if changes else 0)


# Workers


def _workshop(role: str, name: str) -> tuple["Workshop", str, "Stop"]:
    """What a worker process needs, once broker, registry and topics are there."""
    from compose.log_setup import set_up
    from compose.workers.build import Workshop
    from compose.workers.readiness import patiently, wait_until_fit
    from compose.workers.registry_fit import check_readable
    from compose.workers.shutdown import Drained, Stop
    from consumers.control_reader import ControlReader

    worker = name or f"{role}-{socket.gethostname()}-{os.getpid()}"
    here = replace(cluster(), name=worker)
    set_up(role, worker)
    wait_until_fit(here)
    patiently(lambda: check_readable(here))
    control = patiently(lambda: ControlReader(here.log, here.codec, here.topics, from_end=True))
    shop = Workshop(here.log, here.codec, here.topics, here.settings)
    return shop, worker, Stop(Drained(worker, control))


@worker_app.command("agents")
def worker_agents(name: Name = "", accept_truncation: Accept = False) -> None:
    """Start requests, fold journals, run agent programs."""
    from compose.workers.readiness import patiently

    workshop, worker, stop = _workshop("agents", name)
    loop = patiently(lambda: workshop.agents(worker, accept=accept_truncation))
    loop.run(stop, patient=stop.patient)


@worker_app.command("environments")
def worker_environments(name: Name = "", accept_truncation: Accept = False) -> None:
    """Keep environment sessions and step them."""
    from compose.workers.readiness import patiently

    workshop, worker, stop = _workshop("environments", name)
    loop = patiently(lambda: workshop.environments(worker, accept=accept_truncation))
    loop.run(stop, patient=stop.patient)


@worker_app.command("rewards")
def worker_rewards(
    name: Name = "",
    scorer: Annotated[
        list[str] | None, typer.Option(help="name or module:function, optionally *weight.")
    ] = None,
    scoring_id: Annotated[str, typer.Option(help="Under which id the rewards are written.")] = "",
    accept_truncation: Accept = False,
) -> None:
    """Score trajectories."""
    from compose.workers.readiness import patiently

    workshop, worker, stop = _workshop("rewards", name)
    loop = patiently(
        lambda: workshop.rewards(worker, scorer, scoring_id or None, accept=accept_truncation)
    )
    loop.run(stop, patient=stop.patient)


@worker_app.command("models")
def worker_models(
    name: Name = "",
    run: Annotated[str, typer.Option(help="A run's id or folder: serve its policy.")] = "",
    policy: Annotated[str, typer.Option(help="Else the policy id ...")] = "",
    directory: Annotated[Path | None, typer.Option(help="... and its directory.")] = None,
    accept_truncation: Accept = False,
) -> None:
    """Serve one policy, adopting its versions as they are announced."""
    from compose.runs import run_folder
    from compose.workers.build import transformers_engine
    from compose.workers.readiness import patiently
    from schemas.errors import Refused

    if run:
        folder = run_folder.find(settings().state(), run)
        policy, directory = folder.policy_id, folder.policy
    if not policy or directory is None:
        msg = "give --run, or --policy and --directory"
        raise Refused(msg)
    workshop, worker, stop = _workshop("models", name)
    engine = transformers_engine(policy, directory, workshop.settings)
    loop = patiently(lambda: workshop.models(worker, engine, accept=accept_truncation))
    loop.run(stop, wedged_s=300.0, patient=stop.patient)


@worker_app.command("training")
def worker_training(
    run: Annotated[str, typer.Option(help="The run's id or folder.")],
    name: Name = "",
) -> None:
    """Train one run's policy; a second process of the same run stands by for the first."""
    from compose.runs import run_folder

    workshop, worker, stop = _workshop("training", name)
    folder = run_folder.find(workshop.settings.state(), run)
    workshop.training(worker, folder, stop)


@worker_app.command("archive")
def worker_archive(
    name: Name = "",
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Else archive/ in the state directory.")
    ] = None,
    span: Annotated[int, typer.Option(min=1, help="Offsets of one partition in a file.")] = 1000,
    accept_truncation: Accept = False,
) -> None:
    """Write trajectories and scores as Parquet, every full span of offsets once.

    `rollcall query --dir DIR` reads it; what has not filled a span, `rollcall export` covers.

    Example: rollcall worker archive --dir history --span 200
    """
    from schemas.errors import Refused

    require("pyarrow")
    where = directory or settings().archive()
    if where.exists() and not where.is_dir():
        msg = f"--dir {where} is a file; the tables need a directory"
        raise Refused(msg)
    workshop, worker, stop = _workshop("archive", name)
    loop = workshop.archive(worker, where, span, accept=accept_truncation)
    loop.run(stop, patient=stop.patient)


# Runs


Summary = Annotated[Path | None, typer.Option(help="Write the figures there, as JSON.")]
Seed = Annotated[int, typer.Option(help="Of weights, tasks and sampling.")]
Resume = Annotated[bool, typer.Option(help="Go on with the newest unfinished run.")]


def _conduct(recipe: str, seed: int, resume: bool, summary: Path | None) -> None:
    from rich.console import Console

    from compose.conductor.conductor import Stopped, conduct
    from compose.log_setup import set_up

    set_up("conductor", "conductor")
    terminal = Console()
    try:
        conduct(recipe, settings(), seed=seed, resume=resume, summary=summary, terminal=terminal)
    except Stopped:
        terminal.print("stopped; nothing is lost: go on with --resume")
        raise typer.Exit(130) from None


@app.command()
def demo(seed: Seed = 7, summary: Summary = None, resume: Resume = False) -> None:
    """Train the lake-any-start policy from random weights, here and now."""
    _conduct("lake-any-start", seed, resume, summary)


@app.command("run")
def run_recipe(
    recipe: Annotated[str, typer.Argument(help="A TOML file, or the name of a shipped recipe.")],
    seed: Seed = 7,
    summary: Summary = None,
    resume: Resume = False,
    log: Annotated[
        str, typer.Option(help="kafka, or memory: one process, nothing kept.")
    ] = "kafka",
) -> None:
    """Run a recipe: services, workers, training, figures."""
    from schemas.errors import Refused
    from schemas.names import unknown

    if log == "kafka":
        _conduct(recipe, seed, resume, summary)
    elif log == "memory":
        if resume:
            msg = "--log memory keeps nothing that could be resumed"
            raise Refused(msg)
        from compose.conductor.in_memory import run_in_memory
        from compose.log_setup import set_up

        set_up("memory", "memory")
        run_in_memory(recipe, settings(), seed=seed, summary=summary)
    else:
        raise unknown("log", log, ["kafka", "memory"])


@app.command()
def serve(
    directory: Annotated[Path, typer.Option(help="A local Hugging Face directory.")],
    policy: Annotated[str, typer.Option(help="The policy id to serve it under.")] = "policy",
) -> None:
    """Serve a model without training it: services, one worker of each group, until Ctrl-C.

    Announces the directory's weights where the policy has no version yet; else serves the newest.

    Example: rollcall serve --policy mine --directory my-policy
    """
    from rich.console import Console

    from compose.conductor.serving import serve as serve_policy
    from compose.log_setup import set_up

    set_up("conductor", "conductor")
    serve_policy(settings(), directory, policy, Console())


@app.command("export-policy")
def export_policy(
    run: Annotated[str, typer.Argument(help="A run's id or folder.")],
    out: Annotated[Path, typer.Option(help="A directory that is not there yet.")],
) -> None:
    """Write the run's newest weights as a Hugging Face directory."""
    from compose.runs import run_folder
    from compose.runs.export_policy import export

    version = export(run_folder.find(settings().state(), run), out)
    typer.echo(f"version {version} written to {out}; AutoModelForCausalLM.from_pretrained loads it")


@app.command("publish-policy")
def publish_policy(
    directory: Annotated[Path, typer.Argument(help="A local Hugging Face directory.")],
    policy: Annotated[str, typer.Option(help="The policy id to serve it under.")] = "policy",
) -> None:
    """Announce a model directory, so that `worker models` serves it without any training."""
    from compose.runs.publish_policy import publish_policy as publish

    version = publish(cluster(), directory, policy)
    typer.echo(f"version {version} of {policy} announced; serve it with")
    typer.echo(f"  rollcall worker models --policy {policy} --directory {directory}")


# Requests


@app.command()
def submit(
    source: Annotated[str, typer.Argument(help="A JSON Lines file, or - for standard input.")] = "",
    dataset: Annotated[
        str, typer.Option(help="A reasoning-gym data set instead of a file, such as chain_sum.")
    ] = "",
    count: Annotated[int, typer.Option(min=1, help="Entries of the data set.")] = 8,
    group_size: Annotated[int, typer.Option(min=1, help="Rollouts of each task.")] = 1,
    policy: Annotated[str, typer.Option(help="The policy, where a line names none.")] = "policy",
    agent: Annotated[str, typer.Option(help="The program, where a line names none.")] = "",
    again: Annotated[
        bool, typer.Option("--again", help="Under new ids: run what was run before once more.")
    ] = False,
    wait: Annotated[bool, typer.Option(help="Watch until all have been scored.")] = False,
    timeout_s: Annotated[float, typer.Option(help="How long to wait.")] = 600.0,
) -> None:
    """Publish rollout requests, one JSON object a line.

    An id that was asked for before is refused as `repeated`: a file may be submitted twice.
    """
    from compose.submission import submit as publish

    publish(
        cluster(),
        source,
        dataset=dataset,
        count=count,
        group_size=group_size,
        policy_id=policy,
        agent=agent,
        wait=wait,
        timeout_s=timeout_s,
        again=again,
    )


# Looking


@app.command()
def tail(
    topic: Annotated[str, typer.Argument(help="With or without the prefix.")],
    decode: Annotated[
        bool, typer.Option("--decode/--raw", help="Read values with their schema, or leave them.")
    ] = True,
    limit: Annotated[int, typer.Option(min=0, help="Stop after so many; 0 is never.")] = 0,
    follow: Annotated[bool, typer.Option(help="Wait for more at the end.")] = False,
    last: Annotated[int, typer.Option(min=0, help="Begin so many before the end.")] = 0,
) -> None:
    """Print a topic's records as lines of JSON."""
    from compose.look import tail as print_tail

    print_tail(cluster(), topic, decode=decode, limit=limit, follow=follow, last=last)


add_control_commands(app, cluster)
add_lineage_commands(app, cluster)
add_archive_commands(app, topics_app, cluster, settings)
add_history_commands(app, cluster)
add_runs_commands(app, cluster)
add_objects_commands(app, cluster)


@app.command()
def verify(
    since: Annotated[
        str, typer.Option(help="Read from then on: 30m, 2h, 3d ago, or ISO 8601.")
    ] = "",
    until: Annotated[str, typer.Option(help="Judge what lies before then.")] = "",
    drained: Annotated[
        bool, typer.Option("--drained", help="All work has ended: open and pending are breaches.")
    ] = False,
    most_repeated: Annotated[
        int | None, typer.Option(min=0, help="More repeated work than this is a breach.")
    ] = None,
    most_rewritten: Annotated[
        int | None,
        typer.Option(min=0, help="More trajectories, scores or steps written again are a breach."),
    ] = None,
    scoring: Annotated[
        list[str] | None,
        typer.Option(help="A scoring that owes scores; left out, all that were not retired."),
    ] = None,
    run_programs: Annotated[
        bool,
        typer.Option(
            "--run-programs/--no-run-programs",
            help="Run agent programs again; without, what only they imply is not judged.",
        ),
    ] = True,
    json: Annotated[Path | None, typer.Option(help="Write the whole report there.")] = None,
) -> None:
    """Check from the log alone that nothing is lost and nothing is doubled.

    Reads the topics, joins no group, changes nothing. Exit code 1 where an invariant is broken.

    Example: rollcall verify --since 2h --json report.json
    """
    import orjson
    from rich.console import Console

    from compose.files import refuse_no_folder
    from compose.ranges import parse
    from compose.showing import reading, show
    from compose.verify import verify as run_audit

    span = parse(since, until)
    refuse_no_folder(json)
    terminal = Console()
    with reading(terminal) as told:
        report = run_audit(
            cluster(),
            since_ms=span.since_ms,
            until_ms=span.until_ms,
            drained=drained,
            most_repeated=most_repeated,
            most_rewritten=most_rewritten,
            scorings=scoring or None,
            run_programs=run_programs,
            progress=told,
        )
    show(report, terminal)
    if json is not None:
        json.write_bytes(orjson.dumps(report.plain(), option=orjson.OPT_INDENT_2))
    raise typer.Exit(0 if report.ok else 1)


@app.command()
def bench(
    names: Annotated[list[str] | None, typer.Argument(help="Which; all when left out.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the figures there.")] = None,
) -> None:
    """Measure, each figure beside a ceiling measured in the same run."""
    from compose.benchmarks.suite import run_benchmarks

    run_benchmarks(names or [], settings(), json)


@app.command()
def chaos(
    minutes: Annotated[float | None, typer.Option(help="Harm for so long.")] = None,
    seed: Annotated[int, typer.Option(help="Of the schedule and the workload.")] = 7,
    kill: Annotated[
        str, typer.Option(help="Whom, by comma; pauses and network cuts befall them too.")
    ] = "agents,models,environments,rewards,training,broker,registry",
    kills: Annotated[
        int | None, typer.Option(help="Instead of --minutes: a soak of so many SIGKILLs.")
    ] = None,
    rollouts: Annotated[
        int | None, typer.Option(help="Publish so many; left out, as many as keep all busy.")
    ] = None,
    beside: Annotated[
        Path | None,
        typer.Option(
            metavar="WHEEL",
            help="Half of the workers are of this release, and swap with every kill.",
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the figures there.")] = None,
    keep: Annotated[
        Path | None, typer.Option(help="Keep the log and the workers' logs in this directory.")
    ] = None,
) -> None:
    """Kill, pause and cut off whatever runs, on a broker of its own; then verify the log.

    Exit code 0 when nothing was lost, doubled or breached, else 1.

    Example: rollcall chaos --minutes 10 --seed 7 --json chaos.json

    The soak: rollcall chaos --kills 1000

    A rolling upgrade and back: rollcall chaos --minutes 5 --beside rollcall-0.1.0-py3-none-any.whl
    """
    from rich.console import Console

    from compose.chaos.run import run_chaos
    from compose.conductor.conductor import Stopped

    terminal = Console()
    try:
        ok = run_chaos(
            settings(),
            minutes=minutes,
            seed=seed,
            kill=kill,
            kills=kills,
            rollouts=rollouts,
            beside=beside,
            json=json,
            keep=keep,
            terminal=terminal,
        )
    except Stopped:
        terminal.print("stopped; everything was taken down")
        raise typer.Exit(130) from None
    raise typer.Exit(0 if ok else 1)


def _in_panels() -> None:
    """Put every command into its panel, in the order in which they are named there."""
    panels = {name: panel for panel, names in PANELS.items() for name in names.split()}
    order = list(panels)
    kinds: tuple[list[Any], ...] = (app.registered_commands, app.registered_groups)
    for registered in kinds:
        for each in registered:
            each.name = each.name or each.callback.__name__
            each.rich_help_panel = panels[each.name]
        registered.sort(key=lambda each: order.index(each.name))


_in_panels()


def main() -> NoReturn:
    """The process entry: errors of ours become one line and an exit code.

    Modules of the user's are found in the working directory, behind everything that is installed.
    """
    sys.path.append(os.getcwd())
    tell_apart()
    sys.exit(_guarded(_checked))


def _checked() -> object:
    _require_our_rooms()
    return app(standalone_mode=False)


def _require_our_rooms() -> None:
    """Raise Refused where somebody's module would be imported for a package of ours."""
    from importlib.util import find_spec

    from schemas.errors import Refused
    from schemas.names import ROOMS

    ours = Path(__file__).parents[2]
    for room in ROOMS:
        spec = find_spec(room)
        if spec is not None and spec.origin and Path(spec.origin).parents[1] != ours:
            msg = (
                f"{spec.origin} is found where Rollcall's own package {room!r} is meant; rename "
                "it, or take its folder out of PYTHONPATH"
            )
            raise Refused(msg)


def _guarded(command: Callable[[], object]) -> int:
    from compose.services.service_errors import ServicesError
    from schemas.errors import Refused, RollcallError, TopicsDiffer, Unavailable

    try:
        found = command()
    except (Refused, TopicsDiffer, Unavailable) as error:
        typer.echo(f"rollcall: {error}", err=True)
        return 2
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in EXTRAS:
            raise
        typer.echo(f"rollcall: {not_installed([library])}", err=True)
        return 2
    except (RollcallError, ServicesError) as error:
        typer.echo(f"rollcall: {type(error).__name__}: {error}", err=True)
        return 1
    except typer.Abort:
        return 130
    except USAGE as error:
        error.show()
        return int(error.exit_code)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return found if isinstance(found, int) else 0
