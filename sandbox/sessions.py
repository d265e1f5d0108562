"""The table of open environments of a worker. It uses no Kafka, no thread and no clock.

It serves synchronous and asynchronous environments: an `async def` here suspends only if an
environment does. With synchronous ones alone, `rollcall.sandbox.run_inline` runs it without an
event loop.

A step runs only if its index is the number of steps applied; a retry of the last step gets the
kept answer; any other index drops the session. A session that is not held is rebuilt from the
history, if the environment is replayable. A newer attempt closes the sessions of older ones.

`handle` raises WorkFailed: `history_needed` (retry with the actions so far), `session_lost`
(not replayable), `raised` (the environment's own error; its session is dropped), `episode_over`,
`stale_attempt`, `stale_reset` (its answer is no longer kept), `bad_history`, `unknown_kind`, and
the errors of `make_plain`.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from inspect import isawaitable

import orjson

from rollcall.sandbox.environment import AnyEnvironment, Observation, make_plain
from rollcall.sandbox.user_code import convert_errors
from rollcall.schemas.answer_cache import AnswerCache
from rollcall.schemas.errors import FailureCode, RollcallError, WorkFailed
from rollcall.schemas.ids import RolloutKey, rollout_of
from rollcall.schemas.message_code import maker
from rollcall.schemas.messages import EnvironmentStep, EnvironmentStepped

Make = Callable[[str, str], AnyEnvironment | Awaitable[AnyEnvironment]]
"""A function that makes an environment from its name and its config as JSON."""
make_stepped = maker(EnvironmentStepped)
RESET = "reset"
"""The key `(session, RESET)` has the answer to a session's reset, `session` its last answer."""
SHORT_CHARS = 512
"""The length up to which texts are kept in the session itself, and not counted in a cache."""


@dataclass(slots=True, eq=False)
class _OpenEnvironment:
    """One open environment, and its progress."""

    environment: AnyEnvironment
    replayable: bool
    bound: bool = False
    """True if it must stay on the thread that opened it."""
    applied: int = 0
    over: bool = False
    last_action: str | bytes = b""
    """The last action applied, or the digest of a long one."""
    opened_by: bytes | None = None
    """The command id of the reset; None after a rebuild."""
    last: EnvironmentStepped | None = None
    """Its last answer, if that is short."""
    partition: int = 0
    used_at: float = 0.0


@dataclass(slots=True)
class _RolloutSessions:
    """The sessions of a rollout's newest attempt."""

    attempt: int
    sessions: dict[str, _OpenEnvironment] = field(default_factory=dict)

    def bound(self) -> bool:
        """Return True if they must stay on their thread."""
        return any(session.bound for session in tuple(self.sessions.values()))


class Sessions:
    """The table of sessions that answers environment steps; one thread or task at a time.

    `kept` holds each session's last answer, and may be shared by several tables.
    """

    def __init__(
        self,
        make: Make = make_plain,
        kept: AnswerCache[EnvironmentStepped] | None = None,
        replayable: Callable[[str], bool | None] = lambda _: None,
    ) -> None:
        self._make = make
        self._kept = kept if kept is not None else AnswerCache()
        self._replayable = replayable
        """A function of an environment's name: its `replayable`, if known before one is made."""
        self._rollouts: dict[RolloutKey, _RolloutSessions] = {}

    def __len__(self) -> int:
        return sum(len(rollout.sessions) for rollout in self._rollouts.values())

    async def handle(
        self, step: EnvironmentStep, *, partition: int = 0, now: float = 0.0
    ) -> EnvironmentStepped:
        """Answer one command that came from `partition` of the steps' topic at time `now`."""
        try:
            return await (self._close(step) if step.kind == "close" else self._run(step))
        finally:
            held = self._held(step)
            if held:
                held.partition, held.used_at = partition, now

    async def finish(self, step: EnvironmentStep) -> None:
        """Close the session of a step that ended its episode: no more steps will come."""
        await self._forget(rollout_of(step), (step.session,))

    async def drop(self, partition: int) -> int:
        """Close all sessions of a partition that now belongs to another worker; return how many."""
        return await self._forget_where(lambda session: session.partition == partition)

    async def reap(self, now: float, lease_s: float) -> int:
        """Close all sessions whose lease has lapsed; every command renews one. Return how many."""
        return await self._forget_where(lambda session: now - session.used_at > lease_s)

    async def close(self) -> None:
        """Close everything. May be called twice."""
        await self._forget_where(lambda _: True)

    def part(self, stays: RolloutKey | None) -> "Sessions":
        """Move all rollouts except `stays` to a new table, for another thread.

        This table's thread may be within a step of `stays`. Rollouts with an environment that is
        bound to its thread stay too.
        """
        parted = Sessions(self._make, self._kept, self._replayable)
        for name, rollout in tuple(self._rollouts.items()):
            if name != stays and not rollout.bound():
                parted._rollouts[name] = self._rollouts.pop(name)
        return parted

    def rebuildable(self) -> bool:
        """Return True if all open sessions can be rebuilt elsewhere, from their histories."""
        held = (each for rollout in self._rollouts.values() for each in rollout.sessions.values())
        return all(session.replayable for session in held)

    def rollouts(self) -> tuple[RolloutKey, ...]:
        """Return the rollouts with open sessions."""
        return tuple(self._rollouts)

    async def _run(self, step: EnvironmentStep) -> EnvironmentStepped:
        rollout = self._rollouts.get(rollout_of(step))
        if rollout is not None and rollout.attempt != step.attempt:
            await self._replace(step, rollout)
        match step.kind:
            case "reset":
                return await self._reset(step)
            case "step":
                return await self._step(step)
        msg = f"{place_of(step)} is asked for {step.kind!r}; known are reset, step and close"
        raise WorkFailed(code=FailureCode.UNKNOWN_KIND, message=msg, retriable=False)

    async def _replace(self, step: EnvironmentStep, rollout: _RolloutSessions) -> None:
        """Close an older attempt's sessions; raise `stale_attempt` if the step's is older."""
        if step.attempt < rollout.attempt:
            raise stale(place_of(step), rollout.attempt)
        await self._forget(rollout_of(step), tuple(rollout.sessions))

    async def _reset(self, step: EnvironmentStep) -> EnvironmentStepped:
        session = self._held(step)
        if session and session.opened_by == step.command_id:
            return self._opened(step, session)
        await self._forget(rollout_of(step), (step.session,))
        session, opened = await self._build(step)
        session.opened_by = step.command_id
        self._kept.keep((session, RESET), opened)
        return self._hold(step, session, opened)

    def _opened(self, step: EnvironmentStep, session: _OpenEnvironment) -> EnvironmentStepped:
        """Return the kept answer to a reset that is retried."""
        opened = self._kept.get((session, RESET))
        if opened is None:
            msg = (
                f"{place_of(step)} was opened by this reset and is {session.applied} steps further"
            )
            raise WorkFailed(code=FailureCode.STALE_RESET, message=msg, retriable=False)
        return opened

    async def _step(self, step: EnvironmentStep) -> EnvironmentStepped:
        session = self._held(step)
        again = session is not None and step.index == session.applied - 1
        if session and again and _short(step.action) == session.last_action:
            answer = session.last or self._kept.get(session)
            if answer is not None:
                return answer
        # A retry whose answer is no longer kept ends up here too: a replay finds it again.
        if session is None or step.index != session.applied:
            await self._forget(rollout_of(step), (step.session,))
            session, last = await self._build(step)
            self._hold(step, session, last)
        try:
            answer = await _advance(step, session, step.action)
        except RollcallError as error:
            if getattr(error, "code", "") != "episode_over":
                await self._forget(rollout_of(step), (step.session,))
            raise
        self._keep(session, answer)
        return answer

    def _keep(self, session: _OpenEnvironment, answer: EnvironmentStepped) -> None:
        """Keep its last answer: a short one in the session, a long one in the cache."""
        if len(answer.text) + len(answer.info) > SHORT_CHARS:
            session.last = None
            self._kept.keep(session, answer)
        else:
            if session.last is None:
                self._kept.drop(session)
            session.last = answer

    async def _close(self, step: EnvironmentStep) -> EnvironmentStepped:
        """Close a session if it is held; this is optional for clients, so it never fails."""
        held = self._held(step)
        rollout = self._rollouts.get(rollout_of(step))
        if held:
            await self._forget(rollout_of(step), (step.session,))
        elif rollout and rollout.attempt < step.attempt:
            await self._forget(rollout_of(step), tuple(rollout.sessions))
        return EnvironmentStepped(
            "", index=held.applied if held else step.index, session=step.session
        )

    async def _build(self, step: EnvironmentStep) -> tuple[_OpenEnvironment, EnvironmentStepped]:
        """Open a session; for a step, replay its history."""
        known = self._replayable(step.environment)
        if step.kind == "step" and known is not None:
            _history(step, known)  # raise errors of the history before waiting for a slot
        made = self._make(step.environment, step.environment_config)
        environment = await made if isawaitable(made) else made
        try:
            past = _history(step, _says(step, environment)) if step.kind == "step" else ()
            session, last = await _open(step, environment)
            for action in past:
                last = await _advance(step, session, action)
        except RollcallError:
            await _shut(environment)
            raise
        return session, last

    def _held(self, step: EnvironmentStep) -> _OpenEnvironment | None:
        rollout = self._rollouts.get(rollout_of(step))
        if rollout is None or rollout.attempt != step.attempt:
            return None
        return rollout.sessions.get(step.session)

    def _hold(
        self, step: EnvironmentStep, session: _OpenEnvironment, last: EnvironmentStepped
    ) -> EnvironmentStepped:
        rollout = self._rollouts.setdefault(rollout_of(step), _RolloutSessions(step.attempt))
        rollout.sessions[step.session] = session
        self._keep(session, last)
        return last

    async def _forget(self, rollout_of: RolloutKey, names: Iterable[str]) -> int:
        """Close these sessions of a rollout; return how many were held."""
        rollout = self._rollouts.get(rollout_of)
        if rollout is None:
            return 0
        gone = [rollout.sessions.pop(name) for name in names if name in rollout.sessions]
        if not rollout.sessions:
            del self._rollouts[rollout_of]
        for session in gone:
            self._kept.drop(session)
            self._kept.drop((session, RESET))
            await _shut(session.environment)
        return len(gone)

    async def _forget_where(self, wanted: Callable[[_OpenEnvironment], bool]) -> int:
        closed = 0
        for key, rollout in tuple(self._rollouts.items()):
            names = [name for name, held in rollout.sessions.items() if wanted(held)]
            closed += await self._forget(key, names)
        return closed


async def _open(
    step: EnvironmentStep, environment: AnyEnvironment
) -> tuple[_OpenEnvironment, EnvironmentStepped]:
    with convert_errors(
        FailureCode.RAISED, lambda: f"{place_of(step)} cannot be opened with seed {step.seed}"
    ):
        shown = environment.open(step.seed)
        seen = await shown if isawaitable(shown) else shown
        opened = _answer(step, seen, index=0)
        replayable = bool(environment.replayable)
        bound = bool(getattr(environment, "thread_bound", False))
    return _OpenEnvironment(
        environment, replayable, bound, over=opened.terminated or opened.truncated
    ), opened


def _says(step: EnvironmentStep, environment: AnyEnvironment) -> bool:
    with convert_errors(
        FailureCode.RAISED, lambda: f"{place_of(step)} does not say whether it is replayable"
    ):
        return bool(environment.replayable)


def _history(step: EnvironmentStep, replayable: bool) -> tuple[str, ...]:
    """Return the actions to replay. Raises WorkFailed if the session cannot be rebuilt."""
    if not replayable:
        msg = f"{place_of(step)} is not held here, and {step.environment!r} is not replayable"
        raise WorkFailed(code=FailureCode.SESSION_LOST, message=msg, retriable=False)
    if step.history is None:
        msg = f"{place_of(step)} is not held here; send the step with its history"
        raise WorkFailed(code=FailureCode.HISTORY_NEEDED, message=msg, retriable=True)
    if len(step.history) != step.index:
        msg = f"{place_of(step)}: step {step.index} comes with {len(step.history)} earlier actions"
        raise WorkFailed(code=FailureCode.BAD_HISTORY, message=msg, retriable=False)
    return step.history


async def _advance(
    step: EnvironmentStep, session: _OpenEnvironment, action: str
) -> EnvironmentStepped:
    """Apply one action to a session that is ready for it."""
    if session.over:
        msg = f"{place_of(step)} ended after {session.applied} steps; reset it to go on"
        raise WorkFailed(code=FailureCode.EPISODE_OVER, message=msg, retriable=False)
    with convert_errors(
        FailureCode.RAISED, lambda: f"{place_of(step)} failed at step {session.applied}"
    ):
        seen = session.environment.step(action)
        if not isinstance(seen, Observation) and isawaitable(seen):
            seen = await seen
        answer = _answer(step, seen, index=session.applied + 1)
    session.applied = answer.index
    session.over = answer.terminated or answer.truncated
    session.last_action = _short(action)
    return answer


def _short(action: str) -> str | bytes:
    """Return an action, or the digest of a long one, to compare it within this process."""
    return action if len(action) <= SHORT_CHARS else blake2b(action.encode()).digest()


def _answer(step: EnvironmentStep, seen: Observation, *, index: int) -> EnvironmentStepped:
    if not isinstance(seen, Observation):
        msg = f"it must show an Observation, found {type(seen).__name__}"
        raise TypeError(msg)
    seen.text.encode()  # a lone surrogate must fail here, where its session is known
    reward = float(seen.reward)
    if not math.isfinite(reward):
        msg = f"its reward is {reward}"
        raise ValueError(msg)
    return make_stepped(
        text=seen.text,
        reward=reward,
        terminated=bool(seen.terminated),
        truncated=bool(seen.truncated),
        info="{}" if seen.info == {} else _json(seen.info),
        index=index,
        session=step.session,
    )


def _json(info: Mapping[str, object]) -> str:
    return orjson.dumps(dict(info), default=_plain, option=_JSON).decode()


def _plain(value: object) -> object:
    """Convert a value that JSON lacks, without the memory address that `repr` would show."""
    return value.tolist() if hasattr(value, "tolist") else type(value).__name__


_JSON = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


async def _shut(environment: AnyEnvironment) -> None:
    """Close an environment, and ignore its errors."""
    with suppress(RollcallError), convert_errors(FailureCode.RAISED, "closing"):
        closing = environment.close()
        if closing is not None and isawaitable(closing):
            await closing


def stale(place: str, running: int) -> WorkFailed:
    """Return the error for a step of an older attempt than the running one."""
    msg = f"{place} is of an older attempt; {running} is running"
    return WorkFailed(code=FailureCode.STALE_ATTEMPT, message=msg, retriable=False)


class SessionPlace(str):
    """The description of a session, for people, with its rollout and attempt."""

    rollout_id: str = ""
    attempt: int = 0
    journal: int = 0
    """The partition of its rollout's journal."""


def place_of(step: EnvironmentStep) -> SessionPlace:
    """Return the description of a step's session."""
    place = SessionPlace(
        f"session {step.session!r} of rollout {step.rollout_id!r}, attempt {step.attempt}"
    )
    place.rollout_id, place.attempt = step.rollout_id, step.attempt
    place.journal = step.answer_partition
    return place
