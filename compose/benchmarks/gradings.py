"""The time of a grading: the gold patches of five real tasks, each in a new box.

The ceiling is pytest alone, by the command of each task, in an open box that holds its code with
the patch applied and the tests in place. The tasks are those of `tasks build suite-b`.
"""

import asyncio
import statistics
import time
from itertools import chain
from pathlib import Path

from rollcall.compose.benchmarks.box_drivers import require_driver
from rollcall.compose.benchmarks.cpu_used import cpu_used_s
from rollcall.compose.benchmarks.figure import BenchmarkUnavailable, Figure
from rollcall.compose.services.service_errors import ServicesError
from rollcall.compose.settings import Settings
from rollcall.sandbox.boxes.box import Box, Driver, Spec, driver
from rollcall.sandbox.boxes.image_store import is_built
from rollcall.sandbox.grading.grading import grade
from rollcall.sandbox.grading.reference import Reference, reference_of
from rollcall.sandbox.tasks.harbor import HarborTask
from rollcall.sandbox.tasks.listing import read_tasks
from rollcall.sandbox.tasks.suite_b import SUITE_B
from rollcall.schemas.errors import Refused

DRIVER = "bubblewrap"
BASE = "base"
ROUNDS = 3


def grade_s(settings: Settings) -> Figure:
    """Measure the median seconds of a grading, and of the tests alone."""
    require_driver(DRIVER)
    tasks = _tasks(settings.tasks())
    before = cpu_used_s()
    graded, alone, notes = asyncio.run(_rounds(tasks))
    cpu_s = (cpu_used_s() - before) / (len(graded) + len(alone))
    notes.append(f"{cpu_s:.2f} s of CPU for each of both")
    return Figure(
        statistics.median(graded),
        "s",
        statistics.median(alone),
        lower_is_better=True,
        notes=tuple(notes),
    )


def _tasks(folder: Path) -> list[HarborTask]:
    """Return the five tasks. Raises LeftOut if they or their test environments were not built."""
    names = {pair.title for pair in SUITE_B}
    try:
        tasks = [task for task in read_tasks(folder) if task.name in names]
    except Refused:
        tasks = []
    if len(tasks) < len(names):
        msg = f"{len(tasks)} of {len(names)} tasks are in {folder}; `rollcall tasks build suite-b`"
        raise BenchmarkUnavailable(msg)
    if not is_built(BASE):
        msg = f"there is no image {BASE!r}, which holds pytest; run `rollcall images build base`"
        raise BenchmarkUnavailable(msg)
    return tasks


async def _rounds(tasks: list[HarborTask]) -> tuple[list[float], list[float], list[str]]:
    graded: dict[str, list[float]] = {task.name: [] for task in tasks}
    alone: dict[str, list[float]] = {task.name: [] for task in tasks}
    boxes = driver(DRIVER)
    open_all_the_time = await boxes.open(Spec())  # keeps the shared parts of all boxes started
    try:
        for task in tasks * ROUNDS:
            graded[task.name].append(await _graded(boxes, task))
            alone[task.name].append(await _alone(boxes, task))
    finally:
        await open_all_the_time.close()
    notes = [
        f"{name}: {min(times):.2f} s, tests alone {min(alone[name]):.2f} s"
        for name, times in graded.items()
    ]
    return [*chain(*graded.values())], [*chain(*alone.values())], notes


async def _graded(boxes: Driver, task: HarborTask) -> float:
    """Measure one grading. Raises ServicesError if it rejects the task's own patch."""
    reference, patch = _reference(task)
    began = time.perf_counter()
    verdict = await grade(boxes.open, reference, patch)
    took_s = time.perf_counter() - began
    if not verdict.resolved:
        msg = f"the gold patch of {task.name} is judged {verdict}"
        raise ServicesError(msg)
    return took_s


async def _alone(boxes: Driver, task: HarborTask) -> float:
    reference, patch = _reference(task)
    box = await boxes.open(reference.spec)
    try:
        await _lay(box, reference, patch)
        command = reference.verifier.command
        began = time.perf_counter()
        ran = await box.run(("/bin/sh", "-c", command), timeout_s=reference.verifier.timeout_sec)
        took_s = time.perf_counter() - began
    finally:
        await box.close()
    if ran.timed_out:
        msg = f"the tests of {task.name} take more than {reference.verifier.timeout_sec:g} s"
        raise ServicesError(msg)
    return took_s


async def _lay(box: Box, reference: Reference, patch: bytes) -> None:
    if reference.base is not None:
        await box.put(reference.base)
    await box.run(("git", "apply", "--whitespace=nowarn", "-"), stdin=patch)
    await box.put(reference.tests)


def _reference(task: HarborTask) -> tuple[Reference, bytes]:
    return reference_of(task, Spec(image=BASE)), task.gold or b""
