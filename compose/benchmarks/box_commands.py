"""The work of boxes: a command in an open shell, many boxes at once, and gradings of patches.

The ceiling of a command is a shell of the host behind two bare pipes; that of boxes is the same
number of concurrent bare spawns of bubblewrap.

`grade_s` grades the gold patches of five real tasks, those of `tasks build suite-b`, each in a new
box. Its ceiling is pytest alone, by the command of each task, in an open box that holds its code
with the patch applied and the tests in place.
"""

import asyncio
import statistics
import tempfile
import time
from itertools import chain
from pathlib import Path

from rollcall.compose.benchmarks import bare_boxes
from rollcall.compose.benchmarks.figure import BenchmarkUnavailable, Figure, cpu_used_s, timed
from rollcall.compose.benchmarks.requirements import require_driver, spec_of
from rollcall.compose.services.service_errors import ServicesError
from rollcall.compose.settings import Settings
from rollcall.sandbox.boxes.box import Box, Driver, Spec, driver
from rollcall.sandbox.boxes.image_store import is_built
from rollcall.sandbox.boxes.leases import Leases
from rollcall.sandbox.boxes.pool import BoxPool
from rollcall.sandbox.boxes.shell import Shell
from rollcall.sandbox.grading.grading import grade
from rollcall.sandbox.grading.reference import Reference, reference_of
from rollcall.sandbox.tasks.harbor import HarborTask
from rollcall.sandbox.tasks.listing import read_tasks
from rollcall.sandbox.tasks.suite_b import SUITE_B
from rollcall.schemas.errors import Refused

FORKS = "/bin/true"
ACTIONS, ROUNDS = 100, 5
BOXES, AT_ONCE = 300, 60
ACTION_S = 30.0
BORROWER = ("bench", 1)


def shell_action(settings: Settings, name: str) -> Figure:
    """Measure the median milliseconds of a command that forks, in an open shell in a box."""
    del settings
    require_driver(name)
    before = cpu_used_s()
    took, best = asyncio.run(actions(name))
    cpu_ms = (cpu_used_s() - before) / len(took + best) * 1e3
    cuts = statistics.quantiles(took, n=20)
    notes = (
        f"{len(took)} commands: least {min(took):.2f} ms, p95 {cuts[18]:.2f} ms; bare: least "
        f"{min(best):.2f} ms; {cpu_ms:.2f} ms of CPU for each of both",
    )
    return Figure(
        statistics.median(took), "ms", statistics.median(best), lower_is_better=True, notes=notes
    )


async def actions(name: str) -> tuple[list[float], list[float]]:
    """Measure in a box and in a bare shell alternately."""
    took: list[float] = []
    best: list[float] = []
    box = await driver(name).open(spec_of(name))
    try:
        shell = Shell(box)
        await shell.run(FORKS, timeout_s=ACTION_S)
        for _ in range(ROUNDS):
            took += [(await shell.run(FORKS, timeout_s=ACTION_S)).ms for _ in range(ACTIONS)]
            best += await asyncio.to_thread(bare_boxes.shell_ms, FORKS, ACTIONS)
    finally:
        await box.close()
    return took, best


def boxes_per_s(settings: Settings, name: str = "bubblewrap") -> Figure:
    """Measure boxes lent, returned and removed per second, 60 at a time, each made on demand."""
    del settings
    require_driver(name)
    before = cpu_used_s()
    seconds, _ = timed(lambda: asyncio.run(_boxes(name)))
    cpu_ms = (cpu_used_s() - before) / BOXES * 1e3
    before = cpu_used_s()
    bare = bare_boxes.spawns_per_s(BOXES, AT_ONCE)
    bare_ms = (cpu_used_s() - before) / BOXES * 1e3
    notes = (f"{cpu_ms:.1f} ms of CPU for each box, {bare_ms:.1f} for each bare spawn",)
    return Figure(BOXES / seconds, "boxes/s", bare, notes=notes)


async def _boxes(name: str) -> None:
    left = iter(range(BOXES))

    async def borrow(pool: BoxPool) -> None:
        for _ in left:
            await pool.give_back(await pool.lend(Spec(), BORROWER, "ephemeral"))

    with tempfile.TemporaryDirectory(prefix="rollcall-bench-") as folder:
        leases = Leases(Path(folder), "bench")
        pool = BoxPool(driver(name), leases, starts=AT_ONCE)
        try:
            await asyncio.gather(*(borrow(pool) for _ in range(AT_ONCE)))
        finally:
            await pool.close()
            leases.close()


DRIVER = "bubblewrap"
BASE = "base"
GRADE_ROUNDS = 3


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
        for task in tasks * GRADE_ROUNDS:
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
