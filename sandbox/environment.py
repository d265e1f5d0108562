"""The seam to everything an agent can act upon: text in, text and reward out.

What every environment promises (`tests/sandbox/test_environment.py`): the same seed gives the same
first observation; any text is survived as an action; it may be closed twice, opened or not. One
that declares itself `replayable` shows the same again for the same seed and actions, in any
process. Sessions end episodes; an environment need not refuse steps after its end.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from sandbox.foreign import complaint, foreign, load
from schemas.errors import Refused, WorkFailed

SHIPPED: Mapping[str, str] = {
    "gymnasium": "sandbox.environments.gymnasium_text:GymnasiumText",
    "reasoning_gym": "sandbox.environments.reasoning:ReasoningTask",
}
"""Short names, and the factories behind them; these modules are imported when first made."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What an environment showed after one action, or after its opening."""

    text: str
    reward: float = 0.0
    terminated: bool = False
    """The episode came to an end of its own."""
    truncated: bool = False
    """The episode was cut off by a limit."""
    info: Mapping[str, object] = field(default_factory=dict)
    """For people and scorers, never for the policy; goes over the wire as a JSON object."""


@runtime_checkable
class Environment(Protocol):
    """One episode at a time, driven by one thread at a time.

    That is the same one until another session on it takes long: then a thread of its own goes on
    with this. An environment that must stay where it was opened has `thread_bound = True` too.
    """

    replayable: bool
    """Whether a session that was lost can be rebuilt from the seed and the actions."""

    def open(self, seed: int) -> Observation:
        """Begin an episode."""
        ...

    def step(self, action: str) -> Observation:
        """Apply one action, whatever it says."""
        ...

    def close(self) -> None:
        """Give everything back. May be called twice."""
        ...


def check_environment(name: str) -> None:
    """Refuse a name behind which there is nothing, without importing what is behind it.

    Raises Refused.
    """
    wrong = complaint("environment", name, SHIPPED)
    if wrong:
        raise Refused(wrong)


def make_environment(name: str, config_json: str = "") -> Environment:
    """Build an environment from its name and the keyword arguments of its factory.

    Raises WorkFailed: `unknown_environment`, or `bad_config` when the arguments do not fit.
    """
    factory = load("environment", name, SHIPPED)
    config = _config(name, config_json)
    _fit(name, factory, config)
    with foreign("bad_config", f"environment {name!r} cannot be made of {config_json}"):
        product = factory(**config)
        environment = product if isinstance(product, Environment) else None
    if environment is None:
        msg = f"environment {name!r} makes a {type(product).__name__}; "
        msg += "it needs replayable, open, step and close"
        raise WorkFailed(code="bad_config", message=msg, retriable=False)
    return environment


def _config(name: str, config_json: str) -> dict[str, Any]:
    with foreign("bad_config", f"the config of environment {name!r} is not JSON: {config_json!r}"):
        config = json.loads(config_json or "{}")
    if not isinstance(config, dict):
        msg = f"the config of environment {name!r} is {config_json!r}; it must be a JSON object"
        raise WorkFailed(code="bad_config", message=msg, retriable=False)
    return config


def _fit(name: str, factory: Callable[..., object], config: Mapping[str, object]) -> None:
    """Tell a misspelt key from a TypeError deep inside the factory."""
    with foreign("bad_config", f"the factory of environment {name!r} hides its arguments"):
        signature = inspect.signature(factory)
    try:
        signature.bind(**config)
    except TypeError as error:
        takes = ", ".join(signature.parameters)
        msg = f"the config of environment {name!r} does not fit: {error}; it takes {takes}"
        raise WorkFailed(code="bad_config", message=msg, retriable=False) from error
