"""The time until a rollout has its box: from a Reset to its answer, without a log.

Sessions of environment `shell` are opened one after the other, each closed before the next.
`warm`: a started box is lent, and another is started in its place; the ceiling is a lend of the
same pool with empty boxes. `cold`: a box is made for the rollout; the ceiling is the bare tool with
the same arguments. Both of a pair are measured alternately, so that other load affects both: warm
in rounds, cold one by one, each equally often first.
"""

import asyncio
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from rollcall.compose.benchmarks import bare_boxes
from rollcall.compose.benchmarks.box_drivers import require_driver, spec_of
from rollcall.compose.benchmarks.box_sessions import BoxSessions, box_sessions
from rollcall.compose.benchmarks.figure import Figure
from rollcall.compose.settings import Settings
from rollcall.sandbox.boxes.box import Spec, driver
from rollcall.sandbox.boxes.local import LocalDriver

WARM = {"bubblewrap": (5, 40), "docker": (5, 4)}
COLD = {"bubblewrap": (60, 1), "docker": (20, 1)}
"""The rounds, and the starts in each; removing a container takes a second."""
BARE: Mapping[str, Callable[[], float]] = {
    "bubblewrap": bare_boxes.held_namespaces_ms,
    "docker": bare_boxes.container_ms,
}


class Nothing:
    """A box without contents."""

    directory = b"/"
    shown: Mapping[bytes, bytes] = {}

    def __init__(self, ident: str) -> None:
        self.ident = ident

    async def stand_by(self, within_s: float) -> None:
        """Answer the check that it lives."""

    async def close(self) -> None:
        await asyncio.sleep(0)


class NoDriver(LocalDriver):
    """A driver whose boxes are empty, without a process that starts programs in them."""

    name = "none"
    kept = False

    async def open(self, spec: Spec, ident: str = "") -> Any:
        del spec
        await asyncio.sleep(0)
        return Nothing(ident)


def warm(settings: Settings, name: str) -> Figure:
    """Measure the median milliseconds to a warm box."""
    del settings
    require_driver(name)
    config = {"box": name, "image": spec_of(name).image}
    with (
        box_sessions(driver(name), **config) as ours,
        box_sessions(NoDriver(), box="local") as empty,
    ):
        took, best = _by_turns(
            lambda: start_ms(ours, ahead=1), lambda: start_ms(empty, ahead=1), *WARM[name]
        )
    return _figure(took, best, ours, "an empty lend")


def cold(settings: Settings, name: str) -> Figure:
    """Measure the median milliseconds to a box that is made for its rollout."""
    del settings
    require_driver(name)
    config = {"box": name, "image": spec_of(name).image, "mode": "ephemeral"}
    with box_sessions(driver(name), **config) as ours:
        took, best = _by_turns(lambda: start_ms(ours), BARE[name], *COLD[name])
    return _figure(took, best, ours, "the bare tool")


def start_ms(sessions: BoxSessions, ahead: int = 0) -> float:
    """Return the milliseconds of one Reset after all before it are done; `ahead` boxes are warm."""
    sessions.settle(ahead=ahead if sessions.became["lent"] else 0)
    opened = sessions.ask("r", "reset")
    sessions.ask("r", "close")
    sessions.settle(ahead=ahead)
    return (opened.waited_s + opened.took_s) * 1e3


def _by_turns(
    one: Callable[[], float], other: Callable[[], float], rounds: int, times: int
) -> tuple[list[float], list[float]]:
    """Measure both alternately, `times` per round; the first measurement of a round is dropped.

    With one measurement per round, only the very first is dropped.
    """
    seen: tuple[list[float], list[float]] = [], []
    pairs = list(zip((one, other), seen, strict=True))
    for number in range(rounds):
        for measure, taken in pairs[:: 1 if number % 2 else -1]:
            if times > 1 or not number:
                measure()
            taken += [measure() for _ in range(times)]
    return seen


def _figure(took: list[float], best: list[float], ours: BoxSessions, ceiling: str) -> Figure:
    cuts, bare = statistics.quantiles(took, n=20), statistics.quantiles(best, n=20)
    notes = (
        f"{len(took)} starts: least {min(took):.2f} ms, p95 {cuts[18]:.2f} ms; {ceiling}: "
        f"least {min(best):.2f} ms, p95 {bare[18]:.2f} ms",
        f"{ours.cpu_ms / ours.became['ready']:.1f} ms of CPU for each box from start to removal, "
        "what an engine takes not counted",
    )
    return Figure(
        statistics.median(took), "ms", statistics.median(best), lower_is_better=True, notes=notes
    )
