"""The open environments of one worker. Knows no Kafka, no thread and no clock.

A step runs only if its index is the number of steps applied; the last one, asked again, gets the
kept answer; anything else drops the session. A session that is not held is rebuilt from the
history, if the environment is replayable. A newer attempt closes the sessions of older ones.

WorkFailed out of `handle`: `history_needed` (ask again with the actions so far), `session_lost`
(not replayable), `raised` (the environment's own error; its session is dropped), `episode_over`,
`stale_attempt`, `bad_history`, `unknown_kind`, and what `make_environment` raises.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import orjson

from sandbox.environment import Environment, Observation, make_environment
from sandbox.named import foreign
from schemas.errors import RollcallError, WorkFailed
from schemas.messages import EnvironmentStep, EnvironmentStepped

Make = Callable[[str, str], Environment]
"""From an environment's name and its config as JSON."""


@dataclass(slots=True)
class _Session:
    """One open environment, and the answers that may be asked for again."""

    environment: Environment
    opened: EnvironmentStepped
    last: EnvironmentStepped
    last_action: str = ""
    opened_by: bytes | None = None
    """The command id of the reset; None after a rebuild."""
    partition: int = 0
    used_at: float = 0.0

    @property
    def applied(self) -> int:
        return self.last.index


@dataclass(slots=True)
class _Rollout:
    """The sessions of a rollout's newest attempt."""

    attempt: int
    sessions: dict[str, _Session] = field(default_factory=dict)


class Sessions:
    """Answers environment steps from a table of sessions; one thread at a time."""

    def __init__(self, make: Make = make_environment) -> None:
        self._make = make
        self._rollouts: dict[str, _Rollout] = {}

    def __len__(self) -> int:
        return sum(len(rollout.sessions) for rollout in self._rollouts.values())

    def handle(
        self, step: EnvironmentStep, *, partition: int = 0, now: float = 0.0
    ) -> EnvironmentStepped:
        """Answer one command that came from `partition` of the steps' topic at time `now`."""
        try:
            return self._close(step) if step.kind == "close" else self._run(step)
        finally:
            held = self._held(step)
            if held:
                held.partition, held.used_at = partition, now

    def drop(self, partition: int) -> int:
        """Close all sessions of a partition that now belongs to another worker; return how many."""
        return self._forget_where(lambda session: session.partition == partition)

    def reap(self, now: float, lease_s: float) -> int:
        """Close all sessions whose lease has lapsed; every command renews one. Return how many."""
        return self._forget_where(lambda session: now - session.used_at > lease_s)

    def close(self) -> None:
        """Close everything. May be called twice."""
        self._forget_where(lambda _: True)

    def _run(self, step: EnvironmentStep) -> EnvironmentStepped:
        self._admit(step)
        match step.kind:
            case "reset":
                return self._reset(step)
            case "step":
                return self._step(step)
        msg = f"{_place(step)} is asked for {step.kind!r}; known are reset, step and close"
        raise WorkFailed(code="unknown_kind", message=msg, retriable=False)

    def _admit(self, step: EnvironmentStep) -> None:
        """Let a newer attempt replace the older one, and turn a zombie of an older one away."""
        rollout = self._rollouts.get(step.rollout_id)
        if rollout is None or rollout.attempt == step.attempt:
            return
        if step.attempt < rollout.attempt:
            msg = f"{_place(step)} is of an older attempt; {rollout.attempt} is running"
            raise WorkFailed(code="stale_attempt", message=msg, retriable=False)
        self._forget(step.rollout_id, tuple(rollout.sessions))

    def _reset(self, step: EnvironmentStep) -> EnvironmentStepped:
        session = self._held(step)
        if session and session.opened_by == step.command_id:
            return session.opened
        self._forget(step.rollout_id, (step.session,))
        environment = self._make(step.environment, step.environment_config)
        with _closed_on_failure(environment):
            session = _open(step, environment)
        session.opened_by = step.command_id
        self._hold(step, session)
        return session.opened

    def _step(self, step: EnvironmentStep) -> EnvironmentStepped:
        session = self._held(step)
        if session and step.index == session.applied - 1 and step.action == session.last_action:
            return session.last
        if session is None or step.index != session.applied:
            self._forget(step.rollout_id, (step.session,))
            session = self._rebuild(step)
            self._hold(step, session)
        try:
            return _advance(step, session, step.action)
        except RollcallError as error:
            if getattr(error, "code", "") != "episode_over":
                self._forget(step.rollout_id, (step.session,))
            raise

    def _close(self, step: EnvironmentStep) -> EnvironmentStepped:
        """Close a session, or nothing if it is not held; a courtesy, so it never fails."""
        held = self._held(step)
        rollout = self._rollouts.get(step.rollout_id)
        if held:
            self._forget(step.rollout_id, (step.session,))
        elif rollout and rollout.attempt < step.attempt:
            self._forget(step.rollout_id, tuple(rollout.sessions))
        return EnvironmentStepped(
            "", index=held.applied if held else step.index, session=step.session
        )

    def _rebuild(self, step: EnvironmentStep) -> _Session:
        environment = self._make(step.environment, step.environment_config)
        with _closed_on_failure(environment):
            history = _history(step, environment)
            session = _open(step, environment)
            for action in history:
                _advance(step, session, action)
        return session

    def _held(self, step: EnvironmentStep) -> _Session | None:
        rollout = self._rollouts.get(step.rollout_id)
        if rollout is None or rollout.attempt != step.attempt:
            return None
        return rollout.sessions.get(step.session)

    def _hold(self, step: EnvironmentStep, session: _Session) -> None:
        rollout = self._rollouts.setdefault(step.rollout_id, _Rollout(step.attempt))
        rollout.sessions[step.session] = session

    def _forget(self, rollout_id: str, names: Iterable[str]) -> int:
        """Close these sessions of a rollout; return how many were held."""
        rollout = self._rollouts.get(rollout_id)
        if rollout is None:
            return 0
        gone = [rollout.sessions.pop(name) for name in names if name in rollout.sessions]
        for session in gone:
            _shut(session.environment)
        if not rollout.sessions:
            del self._rollouts[rollout_id]
        return len(gone)

    def _forget_where(self, wanted: Callable[[_Session], bool]) -> int:
        closed = 0
        for rollout_id, rollout in tuple(self._rollouts.items()):
            names = [name for name, held in rollout.sessions.items() if wanted(held)]
            closed += self._forget(rollout_id, names)
        return closed


def _open(step: EnvironmentStep, environment: Environment) -> _Session:
    with foreign("raised", f"{_place(step)} cannot be opened with seed {step.seed}"):
        opened = _answer(step, environment.open(step.seed), index=0)
    return _Session(environment, opened, last=opened)


def _history(step: EnvironmentStep, environment: Environment) -> tuple[str, ...]:
    """The actions to rebuild from, or the reason why that cannot be."""
    if not environment.replayable:
        msg = f"{_place(step)} is not held here, and {step.environment!r} is not replayable"
        raise WorkFailed(code="session_lost", message=msg, retriable=False)
    if step.history is None:
        msg = f"{_place(step)} is not held here; send the step with its history"
        raise WorkFailed(code="history_needed", message=msg, retriable=True)
    if len(step.history) != step.index:
        msg = f"{_place(step)}: step {step.index} comes with {len(step.history)} earlier actions"
        raise WorkFailed(code="bad_history", message=msg, retriable=False)
    return step.history


def _advance(step: EnvironmentStep, session: _Session, action: str) -> EnvironmentStepped:
    """Apply one action to a session whose turn it is."""
    if session.last.terminated or session.last.truncated:
        msg = f"{_place(step)} ended after {session.applied} steps; reset it to go on"
        raise WorkFailed(code="episode_over", message=msg, retriable=False)
    with foreign("raised", f"{_place(step)} failed at step {session.applied}"):
        observation = session.environment.step(action)
        session.last = _answer(step, observation, index=session.applied + 1)
    session.last_action = action
    return session.last


def _answer(step: EnvironmentStep, seen: Observation, *, index: int) -> EnvironmentStepped:
    if not isinstance(seen, Observation):
        msg = f"it must show an Observation, found {type(seen).__name__}"
        raise TypeError(msg)
    seen.text.encode()  # a lone surrogate would fail on the wire, where nobody knows whose it is
    reward = float(seen.reward)
    if not math.isfinite(reward):
        msg = f"its reward is {reward}"
        raise ValueError(msg)
    return EnvironmentStepped(
        text=seen.text,
        reward=reward,
        terminated=bool(seen.terminated),
        truncated=bool(seen.truncated),
        info=orjson.dumps(dict(seen.info), default=_plain, option=_JSON).decode(),
        index=index,
        session=step.session,
    )


def _plain(value: object) -> object:
    """What JSON does not know, without the address that `repr` would show."""
    return value.tolist() if hasattr(value, "tolist") else type(value).__name__


_JSON = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


@contextmanager
def _closed_on_failure(environment: Environment) -> Iterator[None]:
    try:
        yield
    except RollcallError:
        _shut(environment)
        raise


def _shut(environment: Environment) -> None:
    """Close; an environment that fails to is closed as far as we are concerned."""
    with suppress(RollcallError), foreign("raised", "closing"):
        environment.close()


def _place(step: EnvironmentStep) -> str:
    return f"session {step.session!r} of rollout {step.rollout_id!r}, attempt {step.attempt}"
