"""`rollcall worker`: one process of a group."""

import os
import socket
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollcall.compose.cli.connection import cluster, settings
from rollcall.compose.extras import require
from rollcall.compose.log_setup import set_up

if TYPE_CHECKING:
    from rollcall.compose.workers.shutdown import Stop
    from rollcall.compose.workers.worker_factory import WorkerFactory

Name = Annotated[str, typer.Option(help="The worker's name in logs and events.")]
Accept = Annotated[
    bool,
    typer.Option(
        "--accept-truncation/--no-accept-truncation",
        help="Go on if the log was truncated below this group's offsets, with what is left of it.",
    ),
]

Run = Annotated[str, typer.Option(help="Serve the policy of this run, given by id or folder.")]
Policy = Annotated[str, typer.Option(help="Without --run: the policy id to serve.")]
Directory = Annotated[
    Path | None,
    typer.Option(help="With --policy: its directory; for --engine openai, that of its tokenizer."),
]
Script = Annotated[
    str, typer.Option(help="With --policy: a module:function that answers; text in, text out.")
]
Tasks = Annotated[Path | None, typer.Option(help="The tasks of the scripts oracle and noisy.")]
GoldShare = Annotated[
    float | None, typer.Option(min=0, max=1, help="The share of tasks that noisy solves.")
]
Engine = Annotated[
    str,
    typer.Option("--engine", help="The engine; default: models.engine of the settings."),
]


def agents(name: Name = "", accept_truncation: Accept = False) -> None:
    """Start requests, fold journals, run agent programs."""
    from rollcall.compose.workers.readiness import patiently

    factory, worker, stop = _worker_factory("agents", name)
    loop = patiently(lambda: factory.agents(worker, accept=accept_truncation))
    loop.run(stop, patient=stop.patient)


def environments(name: Name = "", accept_truncation: Accept = False) -> None:
    """Keep environment sessions and step them."""
    from rollcall.compose.workers.readiness import patiently

    factory, worker, stop = _worker_factory("environments", name)
    loop = patiently(lambda: factory.environments(worker, accept=accept_truncation))
    loop.run(stop, patient=stop.patient)


def rewards(
    name: Name = "",
    scorer: Annotated[
        list[str] | None,
        typer.Option(help="name, module:function or teacher:DIRECTORY, optionally *weight."),
    ] = None,
    scoring_id: Annotated[str, typer.Option(help="The id under which rewards are written.")] = "",
    accept_truncation: Accept = False,
) -> None:
    """Score trajectories."""
    from rollcall.compose.workers.readiness import patiently

    factory, worker, stop = _worker_factory("rewards", name)
    loop = patiently(
        lambda: factory.rewards(worker, scorer, scoring_id or None, accept=accept_truncation)
    )
    loop.run(stop, patient=stop.patient)


def models(
    name: Name = "",
    run: Run = "",
    policy: Policy = "",
    directory: Directory = None,
    script: Script = "",
    tasks: Tasks = None,
    gold_share: GoldShare = None,
    engine_name: Engine = "",
    accept_truncation: Accept = False,
) -> None:
    """Serve one policy, adopting its versions as they are announced.

    A script gets the whole conversation as one text; `rollcall.inference.text_script` shows its
    form. Three are included: oracle applies the gold patch of its task, null never submits, and
    noisy does one or the other.

    Example: rollcall worker models --policy helper --script my_script:answer
    """
    from concurrent.futures import ThreadPoolExecutor

    from rollcall.compose.runs import run_folder
    from rollcall.compose.workers.readiness import patiently
    from rollcall.compose.workers.served_policy import Served

    served = Served(run, policy, directory, script, tasks, gold_share, engine_name)
    served.check(settings())
    light = served.light_engine(settings())
    folder = run_folder.find(settings().state(), run) if run else None
    factory, worker, stop = _worker_factory("models", name)
    engine = light or served.loaded(folder, factory.settings)
    capacity = served.capacity(factory.settings)
    begin = partial(factory.models, worker, engine, accept=accept_truncation, capacity=capacity)
    thread = ThreadPoolExecutor(1, "weights")
    loop = patiently(lambda: begin(thread=thread))
    loop.run(stop, wedged_s=300.0, patient=stop.patient)


def training(
    run: Annotated[str, typer.Option(help="The run's id or folder.")],
    name: Name = "",
    accept_truncation: Accept = False,
) -> None:
    """Train one run's policy; a second process of the same run is a standby.

    If its learner has several ranks, this starts one process for each with torchrun.
    """
    from rollcall.compose.runs import run_folder
    from rollcall.compose.workers import rank_processes
    from rollcall.compose.workers.run_trainer import train

    rank_processes.share_cores()
    folder = run_folder.find(settings().state(), run)
    ranks = folder.learner().computation.ranks
    if ranks > 1 and not rank_processes.begun_by_torchrun():
        named = ("--name", name) if name else ()
        accepts = ("--accept-truncation",) if accept_truncation else ()
        rank_processes.become_ranks(ranks, "worker", "training", "--run", run, *named, *accepts)
    others = rank_processes.join(folder, settings().training) if ranks > 1 else None
    if others is not None and others.rank > 0:
        set_up("training", f"{name or 'training'}-rank{others.rank}")
        rank_processes.follow(folder, settings().training, others)
        return
    factory, worker, stop = _worker_factory("training", name)
    train(factory, worker, folder, stop, others, accept=accept_truncation)


def archive(
    name: Name = "",
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Default: archive/ in the state directory.")
    ] = None,
    span: Annotated[int, typer.Option(min=1, help="Offsets of one partition per file.")] = 1000,
    accept_truncation: Accept = False,
) -> None:
    """Write trajectories and scores as Parquet, every full span of offsets exactly once.

    `rollcall query --dir DIR` reads it. `rollcall export` also writes records of incomplete spans.

    Example: rollcall worker archive --dir history --span 200
    """
    from rollcall.compose.workers.shutdown import run_with_restarts
    from rollcall.schemas.errors import Refused

    require("pyarrow")
    where = directory or settings().archive()
    if where.exists() and not where.is_dir():
        msg = f"--dir {where} is a file; the tables need a directory"
        raise Refused(msg)
    factory, worker, stop = _worker_factory("archive", name)
    begin = partial(factory.archive, worker, where, span, accept=accept_truncation)
    run_with_restarts(begin, stop, patient=stop.patient)


def _worker_factory(role: str, name: str) -> tuple["WorkerFactory", str, "Stop"]:
    """Return the parts of a worker process, once broker, registry and topics are ready."""
    from rollcall.compose.services.embedded import taken_down
    from rollcall.compose.store_identity import check_store
    from rollcall.compose.workers.readiness import check_readable, patiently, wait_until_fit
    from rollcall.compose.workers.shutdown import Drained, Stop
    from rollcall.compose.workers.worker_factory import WorkerFactory
    from rollcall.consumers.loop.control_reader import ControlReader

    worker = name or f"{role}-{socket.gethostname()}-{os.getpid()}"
    here = replace(cluster(), name=worker)
    set_up(role, worker)
    wait_until_fit(here)
    patiently(lambda: check_readable(here))
    patiently(lambda: check_store(here))
    control = patiently(lambda: ControlReader(here.log, here.codec, here.topics, from_end=True))
    factory = WorkerFactory(here.log, here.codec, here.topics, here.settings)
    down = taken_down(here.settings.state(), here.bootstrap_servers)
    return factory, worker, Stop(Drained(worker, control), down)
