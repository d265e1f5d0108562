"""The work of boxes: a command in an open shell, and many boxes at once.

The ceiling of a command is a shell of the host behind two bare pipes; that of boxes is the same
number of concurrent bare spawns of bubblewrap.
"""

import asyncio
import statistics
import tempfile
from pathlib import Path

from rollcall.compose.benchmarks import bare_boxes
from rollcall.compose.benchmarks.box_drivers import require_driver, spec_of
from rollcall.compose.benchmarks.cpu_used import cpu_used_s
from rollcall.compose.benchmarks.figure import Figure, timed
from rollcall.compose.settings import Settings
from rollcall.sandbox.boxes.box import Spec, driver
from rollcall.sandbox.boxes.leases import Leases
from rollcall.sandbox.boxes.pool import BoxPool
from rollcall.sandbox.boxes.shell import Shell

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
