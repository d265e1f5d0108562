"""Any Gymnasium environment whose spaces can be written as text.

An action that cannot be parsed costs a penalty and a turn; the environment is not stepped, and the
last observation is shown again after a prefix. `max_turns` counts every turn, parsed or not;
Gymnasium's own `max_episode_steps` counts applied actions only.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rollcall.sandbox.environment import Observation
from rollcall.sandbox.user_code import convert_errors
from rollcall.schemas import names
from rollcall.schemas.errors import FailureCode, WorkFailed


class GymnasiumText:
    """One Gymnasium environment with observations and actions as text.

    `observation` is a template around the numbers of an observation, or a list with one word per
    value of a Discrete space; `number` is the format of a single number, such as ".2f". `actions`
    is a list with one word per value of a Discrete space; without it, actions are numbers.
    Set `replayable` to false if the environment has randomness beside its seed.
    """

    def __init__(
        self,
        id: str,
        kwargs: Mapping[str, Any] | None = None,
        *,
        observation: str | Sequence[str] = "{observation}",
        number: str = "",
        actions: Sequence[str] | None = None,
        invalid_penalty: float = -0.05,
        invalid_prefix: str = "no ",
        max_turns: int = 0,
        replayable: bool = True,
    ) -> None:
        self.replayable = replayable
        self._env = _make(id, kwargs or {})
        self._observation = observation
        self._number = number
        self._actions = None if actions is None else tuple(actions)
        self._invalid_penalty = invalid_penalty
        self._invalid_prefix = invalid_prefix
        self._max_turns = max_turns
        self._turns = 0
        self._text = ""
        _check_words(id, "actions", actions, self._env.action_space)
        if isinstance(observation, str):
            with convert_errors(
                FailureCode.BAD_CONFIG, f"{id}: the template {observation!r} cannot be filled"
            ):
                observation.format(observation=format(0, number))
        else:
            _check_words(id, "observation", observation, self._env.observation_space)

    def open(self, seed: int) -> Observation:
        observation, info = self._env.reset(seed=seed)
        self._turns = 0
        self._text = self._say(observation)
        return Observation(self._text, info=info)

    def step(self, action: str) -> Observation:
        self._turns += 1
        last_turn = 0 < self._max_turns <= self._turns
        meant = self._read(action.strip())
        if meant is None:
            text = self._invalid_prefix + self._text
            return Observation(text, self._invalid_penalty, False, last_turn, {"invalid": True})
        observation, reward, terminated, truncated, info = self._env.step(meant)
        self._text = self._say(observation)
        cut = bool(truncated) or (last_turn and not terminated)
        return Observation(self._text, float(reward), bool(terminated), cut, info)

    def close(self) -> None:
        self._env.close()

    def _say(self, observation: Any) -> str:
        if not isinstance(self._observation, str):
            return self._observation[int(observation) - int(self._env.observation_space.start)]
        numbers = " ".join(format(number, self._number) for number in _numbers(observation))
        return self._observation.format(observation=numbers)

    def _read(self, action: str) -> Any | None:
        """Parse an action; None if it is invalid."""
        space = self._env.action_space
        if self._actions is None:
            return _parse(action, space)
        if action not in self._actions:
            return None
        return int(space.start) + self._actions.index(action)


def _make(id: str, kwargs: Mapping[str, Any]) -> gymnasium.Env:
    """Make it without Gymnasium's checker, which warns about environments users cannot change."""
    hint = "" if id in gymnasium.registry else f" ({names.hint(id, gymnasium.registry)})"
    with convert_errors(FailureCode.BAD_CONFIG, f"gymnasium cannot make {id!r}{hint}"):
        return gymnasium.make(id, disable_env_checker=True, **kwargs)


def _check_words(id: str, key: str, words: Sequence[str] | None, space: spaces.Space) -> None:
    if words is None:
        if not isinstance(space, _READABLE):
            msg = f"{id}: actions of {space} cannot be read from text; write your own environment"
            raise WorkFailed(code=FailureCode.BAD_CONFIG, message=msg, retriable=False)
        return
    if not isinstance(space, spaces.Discrete):
        msg = f"{id}: {key} is a list of words, but the space is {space}; only Discrete has words"
        raise WorkFailed(code=FailureCode.BAD_CONFIG, message=msg, retriable=False)
    if len(words) != space.n or len(set(words)) != len(words):
        msg = f"{id}: {key} must be {space.n} different words, found {list(words)}"
        raise WorkFailed(code=FailureCode.BAD_CONFIG, message=msg, retriable=False)


_READABLE = (spaces.Discrete, spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)


def _numbers(observation: Any) -> Iterator[int | float | str]:
    """Yield all leaves of an observation in order, as plain Python values."""
    if isinstance(observation, Mapping):
        for part in observation.values():
            yield from _numbers(part)
    elif isinstance(observation, tuple | list):
        for part in observation:
            yield from _numbers(part)
    elif isinstance(observation, str):
        yield observation
    else:
        yield from np.asarray(observation).ravel().tolist()


def _parse(action: str, space: spaces.Space) -> Any | None:
    """Parse numbers separated by blanks or commas; None if the space does not contain them."""
    whole = not isinstance(space, spaces.Box) or np.issubdtype(space.dtype, np.integer)
    try:
        read = [int(part) if whole else float(part) for part in action.replace(",", " ").split()]
        shape = space.shape or ()
        if len(read) != math.prod(shape):
            return None
        with np.errstate(over="ignore"):
            value = np.array(read, dtype=space.dtype).reshape(shape)
    except (ValueError, OverflowError):
        return None
    if not np.isfinite(value).all() or not space.contains(value[()]):
        return None
    return value[()]
