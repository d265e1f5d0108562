"""Engines that each serve one fixed version, beside the engine that follows the newest; and the
staging of weights for one engine, on a thread beside the loop's if there is one.

A held-out rollout asks for one version and lasts longer than that version is the newest, so its
calls are answered by an engine that stays at it. There are few of them: a version replaces one that
was not asked for recently, and the memory of unused ones is freed.
"""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

import structlog

from rollcall.consumers.loop.clock import Clock
from rollcall.consumers.loop.inline_executor import InlineExecutor
from rollcall.inference.engine import Engine, EngineAnswer
from rollcall.schemas.errors import (
    FailureCode,
    Unavailable,
    WeightsDiffer,
    WeightsMissing,
    WireError,
    WorkFailed,
)
from rollcall.schemas.messages import ModelCall, PolicyVersion

MOST = 2
"""A run may ask for the next evaluation before the last rollout of the one before has ended."""
HOLD = 10
"""A version keeps its engine from others between two turns of a rollout, for this multiple of
its loading time: so at most a tenth of the time goes into loading, for any number of versions.
"""
IDLE_S = 30.0
RETRY_S = 1.0
TRIES = 3

log = structlog.get_logger()


@dataclass(eq=False)
class Staging:
    """Stages one version at a time; without a thread it is staged before `stage_version` returns.

    Reading and decoding the weights of a real model takes seconds, while the engine continues to
    answer; only the swap and the canary run on the loop's thread.
    """

    engine: Engine
    thread: Executor
    version: PolicyVersion | None = None
    """The version that is being staged, or waits for `adopt`."""
    _done: Future[None] | None = field(default=None, repr=False)

    def stage_version(self, version: PolicyVersion) -> None:
        """Stage this version, after the one before was adopted."""
        self.version = version
        self._done = self.thread.submit(self.engine.stage, version)

    def ready(self) -> bool:
        """Return True if `adopt` would not wait for another thread."""
        return self._done is None or self._done.done()

    def adopt(self) -> None:
        """Put the version in service. Raises the errors of `Engine.stage` and `Engine.adopt`."""
        done, self._done, self.version = self._done, None, None
        if done is not None:
            done.result()
        self.engine.adopt()


@dataclass(slots=True)
class _Pin:
    engine: Engine
    loaded_s: float
    used_at: float


@dataclass(eq=False)
class PinnedEngines:
    """`replica` makes an engine without weights; `thread` stages them beside the loop's thread."""

    replica: Callable[[], Engine]
    wall: Clock
    most: int = MOST
    thread: Executor = field(default_factory=InlineExecutor)
    _staging: Staging | None = None
    _began: float = 0.0
    _asked_at: float = 0.0
    """The time when the version that is being staged was last asked for."""
    _pins: dict[int, _Pin] = field(default_factory=dict)
    _spare: Engine | None = None
    _failures: Counter[int] = field(default_factory=Counter)
    _not_before: dict[int, float] = field(default_factory=dict)

    def versions(self) -> list[int]:
        """Return the versions that are held now."""
        return sorted(self._pins)

    def serving(self, version: PolicyVersion, coming: PolicyVersion | None = None) -> Engine | None:
        """Return the engine that holds this version; None while it is loading or has to wait.

        A version that is `coming` into service by itself is waited for, without its own engine.
        Raises WorkFailed(`version_gone`) if the version cannot be had any more.
        """
        now = self.wall()
        pin = self._pins.get(version.version) or self._opened(version, coming, now)
        if pin is None:
            return None
        pin.used_at = self.wall()
        return pin.engine

    def step(self) -> list[EngineAnswer]:
        """Take one step with each engine that has calls in hand."""
        answers: list[EngineAnswer] = []
        for pin in self._pins.values():
            if pin.engine.busy():
                answers += pin.engine.step()
                pin.used_at = self.wall()
        return answers

    def waits_s(self) -> list[float]:
        """Return how long to wait at most for the next step of each engine with calls in hand."""
        return [pin.engine.wait_s for pin in self._pins.values() if pin.engine.busy()]

    def expire(self, now_ms: int) -> list[ModelCall]:
        """Drop and return the calls that have not begun and are past their deadline."""
        return [call for pin in self._pins.values() for call in pin.engine.expire(now_ms)]

    def abort(self, rollout_id: str, attempt: int) -> None:
        for pin in self._pins.values():
            pin.engine.abort(rollout_id, attempt)

    def tidy(self) -> None:
        """Release engines that were not asked for longer than another one takes to load."""
        now = self.wall()
        for number, pin in list(self._pins.items()):
            if now - pin.used_at > max(IDLE_S, pin.loaded_s) and not pin.engine.busy():
                del self._pins[number]
        forgotten = now - self._asked_at > IDLE_S
        if self._staging is not None and forgotten and self._staging.ready():
            self._staging = None
        if not self._pins:
            self._spare = None

    def _opened(
        self, version: PolicyVersion, coming: PolicyVersion | None, now: float
    ) -> _Pin | None:
        if self._staging is None and version != coming:
            self._begin(version, now)
        if self._staging is not None and self._staging.version == version:
            self._asked_at = now
        if self._staging is None or not self._staging.ready():
            return None
        staging, self._staging = self._staging, None
        staged = staging.version
        failed = self._adopted(staging, now)
        if failed is not None and staged == version:
            raise failed
        return self._pins.get(version.version)

    def _adopted(self, staging: Staging, now: float) -> WorkFailed | None:
        """Pin the staged version; return the failure if it cannot be had any more."""
        version = staging.version
        assert version is not None
        number = version.version
        try:
            staging.adopt()
        except (MemoryError, RuntimeError) as error:  # torch says so when a device is full
            return self._no_room(version, now, error)
        except (WorkFailed, WireError, Unavailable) as error:
            self._spare = staging.engine
            self._not_before[number] = now + RETRY_S
            return self._note_failure(version, error)
        log.info("version_pinned", policy_id=version.policy_id, version=number)
        loaded = self.wall()
        self._pins[number] = _Pin(staging.engine, loaded - self._began, loaded)
        return None

    def _begin(self, version: PolicyVersion, now: float) -> None:
        number = version.version
        if now < self._not_before.get(number, 0.0):
            return
        try:
            engine = self._free(number)
        except (MemoryError, RuntimeError) as error:  # torch says so when a device is full
            raise self._no_room(version, now, error) from error
        if engine is not None:
            self._staging, self._began = Staging(engine, self.thread), now
            self._staging.stage_version(version)

    def _no_room(self, version: PolicyVersion, now: float, error: Exception) -> WorkFailed:
        self._not_before[version.version] = now + RETRY_S
        msg = (
            f"version {version.version} of {version.policy_id!r} has no room beside the newest: "
            f"{error}"
        )
        return WorkFailed(FailureCode.VERSION_GONE, msg, retriable=False)

    def _free(self, number: int) -> Engine | None:
        """Return an engine that can adopt this version (none goes back); None if all are used."""
        engine, self._spare = self._spare, None
        if engine is None and len(self._pins) >= self.most:
            idle = self._idle()
            if not idle:
                return None
            engine = self._pins.pop(idle[0]).engine
        return engine if engine is not None and engine.version < number else self.replica()

    def _idle(self) -> list[int]:
        """Return the versions whose engine may be replaced, the least recently used first."""
        now = self.wall()
        idle = [
            (pin.used_at, number)
            for number, pin in self._pins.items()
            if now - pin.used_at >= HOLD * pin.loaded_s and not pin.engine.busy()
        ]
        return [number for _, number in sorted(idle)]

    def _note_failure(self, version: PolicyVersion, error: Exception) -> WorkFailed | None:
        """Retry an unreachable store without limit, missing or wrong weights only a few times."""
        log.warning("version_not_pinned", version=version.version, error=str(error))
        lasting = not isinstance(error, Unavailable | WeightsDiffer)
        if not lasting and not isinstance(error, WeightsMissing):
            return None
        self._failures[version.version] += 1
        if self._failures[version.version] < TRIES:
            return None
        msg = f"version {version.version} of {version.policy_id!r} cannot be served: {error}"
        return WorkFailed(FailureCode.VERSION_GONE, msg, retriable=False)
