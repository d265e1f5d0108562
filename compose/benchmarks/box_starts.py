"""The time until a rollout has its box: from a Reset to its answer, without a log.

Sessions of environment `shell` are opened one after the other, each closed before the next.
`warm`: a started box is lent, and another is started in its place; the ceiling is a lend of the
same pool with empty boxes. `cold`: a box is made for the rollout; the ceiling is the bare tool with
the same arguments. Both of a pair are measured alternately, so that other load affects both: warm
in rounds, cold one by one, each equally often first.
"""

import asyncio
import json
import queue
import statistics
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rollcall.compose.benchmarks import bare_boxes
from rollcall.compose.benchmarks.figure import Figure, cpu_used_s
from rollcall.compose.benchmarks.requirements import require_driver, spec_of
from rollcall.compose.services.service_errors import ServicesError
from rollcall.compose.settings import Settings
from rollcall.consumers.environments.sessions.async_sessions import AsyncSessions
from rollcall.consumers.environments.sessions.session_step import SessionStep, SessionTimes
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.event_loop_thread import EventLoopThread
from rollcall.sandbox.boxes.box import Box, Driver, Spec, driver
from rollcall.sandbox.boxes.leases import Leases
from rollcall.sandbox.boxes.local import LocalDriver
from rollcall.sandbox.boxes.pool import BoxPool, Mode
from rollcall.sandbox.environment import EnvironmentKind
from rollcall.sandbox.environments.shell_commands import ShellEnvironment
from rollcall.sandbox.host import Host
from rollcall.schemas.errors import WorkFailed
from rollcall.schemas.ids import command_id
from rollcall.schemas.messages import CallFailed, EnvironmentStep, EnvironmentStepped, Instance

FAR_S = 120.0


@dataclass(slots=True)
class PoolHost:
    """The part of a worker's host that a shell needs: boxes, all of one pool."""

    pool: BoxPool

    @property
    def boxes(self) -> "PoolHost":
        return self

    @property
    def default(self) -> str:
        return self.pool.driver.name

    async def lend(self, driver: str | None, spec: Spec, mode: Mode = "persistent") -> Box:
        """Lend a box. Raises WorkFailed."""
        del driver
        return await self.pool.lend(spec, ("bench", 1), mode)

    async def give_back(self, box: Box, reason: str = "") -> None:
        await self.pool.give_back(box, reason)


class BoxSessions:
    """Sessions for one thread, which waits for each answer."""

    def __init__(self, driver: Driver, config: dict[str, object], folder: Path) -> None:
        self.became: Counter[str] = Counter()
        """The number of boxes so far, by kind of their records."""
        self.cpu_ms = 0.0
        """The CPU milliseconds in total, once it is closed."""
        self._cpu_before_s = cpu_used_s()
        self._config = json.dumps(config)
        self._changed = threading.Condition()
        self._loop_thread = EventLoopThread(threaded=True)
        self._leases = Leases(folder / "leases", "bench")
        self._pool = BoxPool(driver, self._leases, self._tell)
        self._loop_thread.at_close(self._pool.close)
        self._answers: queue.Queue[EnvironmentStepped | CallFailed] = queue.Queue()
        self._lock = threading.Lock()
        self._asked = 0
        self._sessions = AsyncSessions(
            lambda step, body, record: self._answers.put(body),
            lambda step: None,
            lambda: None,
            loop_thread=self._loop_thread,
            make=lambda name, config, place: ShellEnvironment(
                cast(Host, PoolHost(self._pool)), **json.loads(config)
            ),
            kind_of=lambda name: EnvironmentKind(waits=True, replayable=True),
            slots={},
            times=SessionTimes(),
            counts=Counter(),
        )

    def ask(self, rollout: str, kind: str, action: str = "", index: int = 0) -> EnvironmentStepped:
        """Send a command, and wait for its answer. Raises WorkFailed."""
        self._asked += 1
        place = rollout, 1, self._asked, 0
        step = EnvironmentStep(
            *place,
            command_id(*place),
            b"",
            0,
            0,
            kind,
            "shell",
            action=action,
            index=index,
            environment_config=self._config,
            timeout_s=FAR_S,
        )
        record = Record("steps", 0, self._asked, b"", b"", 0)
        self._sessions.dispatch([SessionStep(record, step, self._lock)])
        answer = self._answers.get(timeout=FAR_S)
        if isinstance(answer, CallFailed):
            raise WorkFailed(answer.code, answer.message, retriable=answer.retriable)
        return answer

    def settle(self, *, ahead: int = 0) -> None:
        """Wait until all returned boxes are removed, and `ahead` warm ones are ready."""
        became = self.became

        def quiet() -> bool:
            return (
                became["removed"] >= became["returned"]
                and became["ready"] >= became["lent"] + ahead
            )

        with self._changed:
            if not self._changed.wait_for(quiet, FAR_S):
                msg = f"boxes are not removed and started anew within {FAR_S:g} s: {became}"
                raise ServicesError(msg)

    def close(self) -> None:
        """Close all; call it once, as the last method."""
        self._sessions.close()
        self._leases.close()
        self.cpu_ms = (cpu_used_s() - self._cpu_before_s) * 1e3

    def _tell(self, instance: Instance) -> None:
        with self._changed:
            self.became[instance.kind] += 1
            self._changed.notify_all()


@contextmanager
def box_sessions(driver: Driver, **config: object) -> Iterator[BoxSessions]:
    """Yield sessions, and remove all their boxes afterwards."""
    with tempfile.TemporaryDirectory(prefix="rollcall-bench-") as folder:
        sessions = BoxSessions(driver, config, Path(folder))
        try:
            yield sessions
        finally:
            sessions.close()


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
