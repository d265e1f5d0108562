"""The seam to everything an agent can act upon: text in, text and reward out.

What every environment promises (`tests/sandbox/test_environment.py`): the same seed gives the same
first observation; any text is survived as an action; it may be closed twice, opened or not. One
that declares itself `replayable` shows the same again for the same seed and actions, in any
process. Sessions end episodes; an environment need not refuse steps after its end.

One that waits for something outside, a process or a server, has `async def` methods: hundreds of
them wait on one thread. Whether one does is read off its class before it is made (`kind_of`).
"""

import inspect
import json
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol, cast, get_type_hints

from sandbox.foreign import complaint, foreign, load
from sandbox.host import Host
from schemas.errors import Refused, WorkFailed

SHIPPED: Mapping[str, str] = {
    "gymnasium": "sandbox.environments.gymnasium_text:GymnasiumText",
    "hosted": "sandbox.environments.hosted_agent:HostedAgent",
    "openenv": "sandbox.environments.openenv_text:OpenEnvText",
    "reasoning_gym": "sandbox.environments.reasoning:ReasoningTask",
    "shell": "sandbox.environments.shell_commands:ShellEnvironment",
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


class WaitingEnvironment(Protocol):
    """One episode at a time, in a task of its own on an event loop that all of them share.

    Whatever takes time is awaited: who blocks blocks everybody. A step past its time is cancelled
    and its session closed, in the same task. A factory with a parameter `host` is given one.
    What a worker has only so many of is named by a class attribute `slot`, one name or several; one
    of each is held while it is open, all or none of them. A static method `slots_beside(config)`
    names those of another session of its rollout that it cannot do without.
    """

    replayable: bool

    async def open(self, seed: int) -> Observation: ...

    async def step(self, action: str) -> Observation: ...

    async def close(self) -> None: ...


AnyEnvironment = Environment | WaitingEnvironment
WANTED = ("replayable", "open", "step", "close")
"""What every environment has."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What is known of an environment before one is made."""

    waits: bool = False
    """Whether its methods are `async def`."""
    slots: tuple[str, ...] = ()
    """What it takes one of each while it is open, where its worker has only so many."""
    replayable: bool | None = None
    """None where only an environment that was made can say."""
    beside: Callable[[Mapping[str, Any]], object] | None = None
    """Of its config: what the session beside it takes, which it cannot do without."""


def check_environment(name: str) -> None:
    """Refuse a name behind which there is nothing, without importing what is behind it.

    Raises Refused.
    """
    wrong = complaint("environment", name, SHIPPED)
    if wrong:
        raise Refused(wrong)


def kind_of(name: str) -> Kind:
    """What the class behind a name says of its environments; imports the module that it is in.

    The class is the factory itself, or what a function is annotated to return. Raises WorkFailed.
    """
    return _kind(name, load("environment", name, SHIPPED))


def _kind(name: str, factory: Callable[..., object]) -> Kind:
    with foreign("bad_config", f"environment {name!r} does not say what it is"):
        made = factory if isinstance(factory, type) else _returned(factory)
        slot, replayable = getattr(made, "slot", ""), getattr(made, "replayable", None)
        return Kind(
            waits=inspect.iscoroutinefunction(getattr(made, "step", None)),
            slots=_names(slot),
            replayable=replayable if isinstance(replayable, bool) else None,
            beside=getattr(made, "slots_beside", None),
        )


def slots_beside(name: str, kind: Kind, config_json: str) -> tuple[str, ...]:
    """What the session takes that one of this config is to have beside it. Raises WorkFailed."""
    if kind.beside is None:
        return ()
    config = _config(name, config_json)
    with foreign("bad_config", f"environment {name!r} does not say what it needs beside it"):
        return _names(kind.beside(config))


def _names(slot: object) -> tuple[str, ...]:
    """One name or several, as a class says it."""
    several = slot if isinstance(slot, (tuple, list)) else (slot,)
    return tuple(name for name in several if isinstance(name, str) and name)


def _returned(factory: Callable[..., object]) -> object:
    """What a function is annotated to return, if that can be told."""
    with suppress(WorkFailed), foreign("", "annotations are for type checkers first"):
        return get_type_hints(factory).get("return")
    return None


def is_replayable(name: str, config_json: str = "") -> bool:
    """Whether lost sessions of an environment can be rebuilt. Raises WorkFailed."""
    kind = kind_of(name)
    if kind.waits and kind.replayable is not None:
        return kind.replayable
    environment = (make_environment if kind.waits else make_plain)(name, config_json)
    with foreign("raised", f"environment {name!r} does not say whether it is replayable"):
        if not kind.waits:
            environment.close()
        return bool(environment.replayable)


def make_environment(name: str, config_json: str = "", host: Host | None = None) -> AnyEnvironment:
    """Build an environment from its name and the keyword arguments of its factory.

    One that waits and takes a `host` is given it. Raises WorkFailed: `unknown_environment`, or
    `bad_config` when the arguments do not fit.
    """
    factory = load("environment", name, SHIPPED)
    config = _config(name, config_json)
    _fit(name, factory, config, host)
    with foreign("bad_config", f"environment {name!r} cannot be made of {config_json}"):
        product = factory(**config)
        fits = all(hasattr(product, wanted) for wanted in WANTED)
    if not fits:
        msg = f"environment {name!r} makes a {type(product).__name__}; "
        msg += "it needs replayable, open, step and close"
        raise _bad_config(msg)
    return cast(AnyEnvironment, product)


def make_plain(name: str, config_json: str = "") -> Environment:
    """Build an environment that does not wait; raises WorkFailed(`bad_config`) for one that does.

    Else as `make_environment`.
    """
    environment = make_environment(name, config_json)
    if inspect.iscoroutinefunction(environment.step):
        msg = f"environment {name!r} waits, and was taken for one that does not; "
        msg += "name its class, or annotate what the function returns"
        raise _bad_config(msg)
    return cast(Environment, environment)


def _config(name: str, config_json: str) -> dict[str, Any]:
    with foreign("bad_config", f"the config of environment {name!r} is not JSON: {config_json!r}"):
        config = json.loads(config_json or "{}")
    if not isinstance(config, dict):
        msg = f"the config of environment {name!r} is {config_json!r}; it must be a JSON object"
        raise _bad_config(msg)
    return config


def _signature(factory: Callable[..., object]) -> inspect.Signature:
    """What it takes; found once of each, for it costs more than a quick environment's reset."""
    known = _known_signature if isinstance(factory, Hashable) else inspect.signature
    return known(factory)


@lru_cache(maxsize=256)
def _known_signature(factory: Callable[..., object]) -> inspect.Signature:
    return inspect.signature(factory)


def _fit(
    name: str, factory: Callable[..., object], config: dict[str, Any], host: Host | None
) -> None:
    """Add the host where one is taken; tell a misspelt key from a TypeError deep inside."""
    with foreign("bad_config", f"the factory of environment {name!r} hides its arguments"):
        signature = _signature(factory)
    taken = signature.parameters.get("host") if _kind(name, factory).waits else None
    if taken is not None and "host" in config:
        msg = f"the config of environment {name!r} names 'host', which its worker gives"
        raise _bad_config(msg)
    if taken is not None and host is None and taken.default is taken.empty:
        msg = f"environment {name!r} is given its host by an environments worker; this is none"
        raise _bad_config(msg)
    if taken is not None and host is not None:
        config["host"] = host
    try:
        signature.bind(**config)
    except TypeError as error:
        takes = ", ".join(key for key in signature.parameters if taken is None or key != "host")
        msg = f"the config of environment {name!r} does not fit: {error}; it takes {takes}"
        raise _bad_config(msg) from error


def _bad_config(message: str) -> WorkFailed:
    return WorkFailed(code="bad_config", message=message, retriable=False)
