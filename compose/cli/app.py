"""The command line. Every command imports what it needs when it runs, so `--help` is quick.

Exit codes: 0 done, 1 something failed, 2 invalid input, 3 a required goal was missed, 130
interrupted.
"""

import faulthandler
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, NoReturn

import typer

from rollcall.compose.cli import (
    agents,
    dlq,
    images,
    objects,
    policies,
    runs,
    tasks,
    topics,
    workers,
)
from rollcall.compose.cli.algorithms import algorithms
from rollcall.compose.cli.boxes import boxes
from rollcall.compose.cli.checks import bench, chaos, verify
from rollcall.compose.cli.connection import CLUSTER
from rollcall.compose.cli.control import cancel, drain, list_quotas, pause, resume, set_quota
from rollcall.compose.cli.control import unset as unset_quota
from rollcall.compose.cli.evaluate import evaluate
from rollcall.compose.cli.policies import export_policy, publish_policy
from rollcall.compose.cli.query import export, query
from rollcall.compose.cli.replay import fork, replay
from rollcall.compose.cli.rescore import list_scorings, rescore
from rollcall.compose.cli.rescore import retire as retire_scoring
from rollcall.compose.cli.retrain import retrain
from rollcall.compose.cli.run_reports import balance, curve, weights
from rollcall.compose.cli.services import down, status, up
from rollcall.compose.cli.submit import submit
from rollcall.compose.cli.topics import tail
from rollcall.compose.cli.trajectory import trajectory
from rollcall.compose.cli.waiting import waiting
from rollcall.compose.extras import EXTRAS, not_installed
from rollcall.compose.log_setup import hide_in_tracebacks
from rollcall.compose.terminal import say
from rollcall.schemas.interrupts import tell_apart

Command = Callable[..., None]

# Newer versions of typer have their own click, whose errors are not those of package `click`.
USAGE: Any = next(kind for kind in typer.BadParameter.mro() if kind.__name__ == "ClickException")


def _group(purpose: str, **commands: Command | typer.Typer) -> typer.Typer:
    """Group commands of two words; an underscore becomes a hyphen."""
    group = typer.Typer(no_args_is_help=True, help=purpose)
    for name, command in commands.items():
        if isinstance(command, typer.Typer):
            group.add_typer(command, name=name)
        else:
            group.command(name.replace("_", "-"))(command)
    return group


def _runs() -> typer.Typer:
    """Make the group `runs`, which lists runs if called without a command."""
    group = typer.Typer(invoke_without_command=True)
    group.callback()(runs.list_runs)
    group.command()(runs.retire)
    return group


PANELS: Mapping[str, Mapping[str, Command | typer.Typer]] = {
    "Start": {
        "demo": runs.demo,
        "run": runs.run_recipe,
        "serve": runs.serve,
        "up": up,
        "down": down,
        "status": status,
        "topics": _group(
            "Provision topics and schemas.",
            plan=topics.plan,
            apply=topics.apply,
            diff=topics.diff,
            stats=topics.stats,
            forget_id=topics.forget_id,
        ),
        "worker": _group(
            "Run one process of a group.",
            agents=workers.agents,
            environments=workers.environments,
            rewards=workers.rewards,
            models=workers.models,
            training=workers.training,
            archive=workers.archive,
        ),
        "agents": _group(
            "Agents of other people, each in an environment of its own.",
            list=agents.list_agents,
            install=agents.install,
            check=agents.check,
        ),
        "tasks": _group(
            "Tasks as directories: checked, imported, built from releases.",
            check=tasks.check,
            request=tasks.request,
            **{"import": _group("Import tasks of data sets.", swe=tasks.import_swe)},
            build=_group(
                "Build tasks of releases in the package index.",
                release_pair=tasks.build_release_pair,
                suite_b=tasks.build_suite_b,
            ),
        ),
        "images": _group(
            "Images for boxes.",
            build=images.build,
            list=images.list_images,
            gc=images.gc,
        ),
        "submit": submit,
        "policy": _group("Language models of others.", fetch=policies.fetch),
        "publish-policy": publish_policy,
        "export-policy": export_policy,
    },
    "Look": {
        "tail": tail,
        "trajectory": trajectory,
        "balance": balance,
        "waiting": waiting,
        "boxes": boxes,
        "runs": _runs(),
        "curve": curve,
        "weights": weights,
        "algorithms": algorithms,
        "objects": _group(
            "Records too heavy for the log, in a store of objects.",
            list=objects.list_objects,
            gc=objects.gc,
        ),
    },
    "Steer": {
        "cancel": cancel,
        "pause": pause,
        "resume": resume,
        "drain": drain,
        "quota": _group(
            "Quotas of users: running rollouts, calls per second.",
            set=set_quota,
            list=list_quotas,
            unset=unset_quota,
        ),
        "dlq": _group(
            "Dead letters: records that could not be read.",
            list=dlq.list_letters,
            show=dlq.show,
            replay=dlq.replay,
            drop=dlq.drop,
            skip=dlq.skip,
        ),
        "scorings": _group(
            "Scorings that owe a score for every trajectory.",
            list=list_scorings,
            retire=retire_scoring,
        ),
    },
    "Read again": {
        "eval": evaluate,
        "rescore": rescore,
        "replay": replay,
        "retrain": retrain,
        "fork": fork,
        "export": export,
        "query": query,
    },
    "Check": {"verify": verify, "chaos": chaos, "bench": bench},
}
"""All commands, under the headings and in the order of `--help`."""


def _say_version(wanted: bool) -> None:
    from importlib.metadata import version

    from rollcall.schemas.message_code import message_code

    if wanted:
        say(f"rollcall {version('rollcall')}\ncodec: {message_code().form}")
        raise typer.Exit


def _rollcall(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_say_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Agentic reinforcement learning for language models on Apache Kafka."""
    CLUSTER.set(context.obj)


def _command_line() -> typer.Typer:
    line = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
    line.callback()(_rollcall)
    for panel, entries in PANELS.items():
        for name, entry in entries.items():
            if isinstance(entry, typer.Typer):
                line.add_typer(entry, name=name, rich_help_panel=panel)
            else:
                line.command(name, rich_help_panel=panel)(entry)
    return line


app = _command_line()


def main() -> NoReturn:
    """Run the command line: our errors become one line and an exit code.

    Users' modules are found in the working directory, after all installed ones.
    """
    with suppress(RuntimeError, ValueError, OSError):  # standard error may be closed
        faulthandler.enable()  # a crash inside a client library tells where it was
    sys.path.append(os.getcwd())
    tell_apart()
    hide_in_tracebacks()
    sys.exit(_guarded(lambda: app(standalone_mode=False)))


def _guarded(command: Callable[[], object]) -> int:
    from rollcall.compose.services.service_errors import ServicesError
    from rollcall.schemas.errors import (
        Refused,
        RollcallError,
        StoresDiffer,
        TopicsDiffer,
        Unavailable,
    )

    try:
        found = command()
    except (Refused, StoresDiffer, TopicsDiffer, Unavailable) as error:
        say(f"rollcall: {error}", err=True)
        return 2
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in EXTRAS:
            raise
        say(f"rollcall: {not_installed([library])}", err=True)
        return 2
    except (RollcallError, ServicesError) as error:
        say(f"rollcall: {type(error).__name__}: {error}", err=True)
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
