"""A run in one process on the in-memory log: groups take turns, nothing is kept.

It has the same groups, messages and bytes as on Kafka; for tests and quick looks at a recipe.
"""

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console as Terminal

from rollcall.compose.conductor import run_summary
from rollcall.compose.conductor.live_panel import line
from rollcall.compose.conductor.preflight import preflight
from rollcall.compose.conductor.run_summary import figures_of, figures_of_others
from rollcall.compose.conductor.run_watch import watch_of
from rollcall.compose.extras import require
from rollcall.compose.files import refuse_no_folder, write_json
from rollcall.compose.runs import run_folder
from rollcall.compose.runs.recipe import load_recipe
from rollcall.compose.schema_ids import SchemaIds
from rollcall.compose.settings import Settings
from rollcall.compose.workers.engines import check_recipe
from rollcall.compose.workers.run_trainer import run_trainer
from rollcall.compose.workers.served_policy import run_engine
from rollcall.compose.workers.worker_factory import WorkerFactory
from rollcall.consumers.history.runs.run_figures import RunFigures, RunReader
from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.objects import ObjectStore
from rollcall.schemas.schema_memory import SchemaMemory
from rollcall.schemas.topics import Topics, wanted

LINE_EVERY_S = 5.0


def run_in_memory(
    recipe_name: str,
    settings: Settings,
    *,
    seed: int,
    summary: Path | None,
    tasks: Path | None = None,
) -> dict[str, Any]:
    """Run a recipe to its end, with `tasks` in place of its own if given; print and return its
    figures.
    """
    refuse_no_folder(summary, "--summary")
    recipe, text = load_recipe(recipe_name)
    require(*recipe.libraries())
    check_recipe(settings.models.engine, recipe)
    began = time.monotonic()
    terminal = Terminal()
    with tempfile.TemporaryDirectory(prefix="rollcall-") as state:
        folder = run_folder.create(Path(state), recipe, text, seed, tasks=tasks)
        preflight(folder, settings, watched=False)
        store = ObjectStore(f"{state}/objects", above_bytes=settings.objects.above_bytes)
        figures, others = _turns(folder, settings, store, terminal)
    wall_s = time.monotonic() - began
    result = run_summary.summary(figures, others, seed=seed, wall_s=wall_s)
    terminal.print(
        run_summary.summary_lines(figures, others, result), highlight=False, soft_wrap=True
    )
    terminal.print_json(orjson.dumps(result).decode())
    if summary is not None:
        write_json(summary, result)
    return result


def _turns(
    folder: run_folder.RunFolder, settings: Settings, store: ObjectStore, terminal: Terminal
) -> tuple[RunFigures, dict[str, RunFigures]]:
    topics = Topics(settings.prefix)
    main = threading.current_thread() is threading.main_thread()
    parts = folder.parts()
    log = MemoryLog(wanted(settings.prefix, [part.policy_id for part in parts]))
    memory = SchemaMemory(SchemaIds(lambda: log, topics.stores).first)
    codec = Codec(LocalRegistry(), objects=store, memory=memory)
    factory = WorkerFactory(log, codec, topics, settings, watched=False, guarded=main)
    trainer, *trainers = [run_trainer(factory, f"training-{part.name}", part) for part in parts]
    scorers = {part.recipe.scoring_id: part.recipe.scorers for part in parts}
    loops = [
        factory.agents("agents"),
        *(factory.models(f"models-{part.name}", run_engine(part, settings)) for part in parts),
        factory.environments("environments"),
        *(factory.rewards(f"rewards-{each}", names, each) for each, names in scorers.items()),
    ]
    watch = watch_of(folder)
    figures, others = figures_of(folder, watch.curation), figures_of_others(folder)
    reader = RunReader(factory, figures, {}, others.values())
    due = 0.0
    while not trainer.done():
        for loop in loops:
            loop.turn(0.0)
        trainer.turn(0.0)
        for other in trainers:
            if not other.done():
                other.turn(0.0)
        reader.poll(time.monotonic())
        watch.require_progress(figures)
        if time.monotonic() >= due:
            due = time.monotonic() + LINE_EVERY_S
            terminal.print(
                line(figures, time.monotonic(), watch, others), highlight=False, soft_wrap=True
            )
    reader.poll(time.monotonic())
    for loop in loops:
        loop.role.close()
    return figures, others
