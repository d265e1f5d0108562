"""Sessions of environment `shell` in a worker's event loop (its event loop), used without a log."""

import json
import queue
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from rollcall.compose.benchmarks.cpu_used import cpu_used_s
from rollcall.compose.services.service_errors import ServicesError
from rollcall.consumers.environments.sessions.async_sessions import AsyncSessions
from rollcall.consumers.environments.sessions.session_thread import SessionStep
from rollcall.consumers.environments.sessions.session_times import SessionTimes
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.event_loop_thread import EventLoopThread
from rollcall.sandbox.boxes.box import Box, Driver, Spec
from rollcall.sandbox.boxes.leases import Leases
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
            *place, command_id(*place), b"", 0, 0, kind, "shell", action=action, index=index,
            environment_config=self._config, timeout_s=FAR_S,
        )  # fmt: skip
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
