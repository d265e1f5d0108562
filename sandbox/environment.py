"""The interface of environments: text actions in, text observations and rewards out.

Every environment guarantees (`tests/sandbox/test_environment.py`): the same seed gives the same
first observation; any text is accepted as an action; it may be closed twice, opened or not. A
`replayable` one gives the same observations for the same seed and actions, in any process.
Sessions end episodes; an environment need not refuse steps after its end.

An environment that waits for a process or a server has `async def` methods: hundreds of them wait
on one thread. `kind_of` reads from its class whether it does, before one is made.
"""

import inspect
import json
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol, cast, get_type_hints

from rollcall.sandbox.host import Host
from rollcall.sandbox.user_code import complaint, convert_errors, load
from rollcall.schemas.errors import FailureCode, Refused, WorkFailed

SHIPPED: Mapping[str, str] = {
    "gymnasium": "rollcall.sandbox.environments.gymnasium_text:GymnasiumText",
    "hosted": "rollcall.sandbox.environments.hosted_agent:HostedAgent",
    "openenv": "rollcall.sandbox.environments.openenv_text:OpenEnvText",
    "reasoning_gym": "rollcall.sandbox.environments.reasoning:ReasoningTask",
    "shell": "rollcall.sandbox.environments.shell_commands:ShellEnvironment",
}
"""Factories by short name; a module is imported when its environment is first made."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The result of an action, or of opening an environment."""

    text: str
    reward: float = 0.0
    terminated: bool = False
    """True if the episode has ended by itself."""
    truncated: bool = False
    """True if a limit has ended the episode."""
    info: Mapping[str, object] = field(default_factory=dict)
    """Data for people and scorers, never for the policy; serialised as a JSON object."""


class Environment(Protocol):
    """A synchronous environment: one episode at a time, run by one thread at a time.

    The thread stays the same until another session on it takes long: then this one moves to another
    thread. An environment that must stay on the thread that opened it sets `thread_bound = True`.
    """

    replayable: bool
    """True if a lost session can be rebuilt from the seed and the actions."""

    def open(self, seed: int) -> Observation:
        """Begin an episode."""
        ...

    def step(self, action: str) -> Observation:
        """Apply one action, which may be any text."""
        ...

    def close(self) -> None:
        """Release all resources. May be called twice."""
        ...


class WaitingEnvironment(Protocol):
    """An asynchronous environment: one episode at a time, in its own task on a shared event loop.

    It must await whatever takes time, since blocking stops all others. A step past its deadline is
    cancelled and its session closed, in the same task. A factory with a parameter `host` gets one.
    A class attribute `slot` names limited resources of a worker, one name or several; one of each
    is held while it is open, all or none of them. A static method `slots_beside(config)` names the
    slots of another session of its rollout that it depends on.
    """

    replayable: bool

    async def open(self, seed: int) -> Observation: ...

    async def step(self, action: str) -> Observation: ...

    async def close(self) -> None: ...


AnyEnvironment = Environment | WaitingEnvironment
WANTED = ("replayable", "open", "step", "close")
"""Attributes that every environment has."""


@dataclass(frozen=True, slots=True)
class EnvironmentKind:
    """The properties of an environment that its class declares."""

    waits: bool = False
    """True if its methods are `async def`."""
    slots: tuple[str, ...] = ()
    """The names of limited slots of a worker of which it holds one each while it is open."""
    replayable: bool | None = None
    """Its `replayable`; None if only an instance has it."""
    beside: Callable[[Mapping[str, Any]], object] | None = None
    """A function of its config that returns the slots of the session that it depends on."""


def check_environment(name: str) -> None:
    """Refuse an unknown name, without importing its module.

    Raises Refused.
    """
    wrong = complaint("environment", name, SHIPPED)
    if wrong:
        raise Refused(wrong)


def kind_of(name: str) -> EnvironmentKind:
    """Return the properties that the class of an environment declares; imports its module.

    The class is the factory itself, or a function's annotated return type. Raises WorkFailed.
    """
    return _kind(name, load("environment", name, SHIPPED))


def _kind(name: str, factory: Callable[..., object]) -> EnvironmentKind:
    with convert_errors(FailureCode.BAD_CONFIG, f"environment {name!r} does not say what it is"):
        made = factory if isinstance(factory, type) else _returned(factory)
        slot, replayable = getattr(made, "slot", ""), getattr(made, "replayable", None)
        return EnvironmentKind(
            waits=inspect.iscoroutinefunction(getattr(made, "step", None)),
            slots=_names(slot),
            replayable=replayable if isinstance(replayable, bool) else None,
            beside=getattr(made, "slots_beside", None),
        )


def slots_beside(name: str, kind: EnvironmentKind, config_json: str) -> tuple[str, ...]:
    """Return the slots of the session that one of this config depends on. Raises WorkFailed."""
    if kind.beside is None:
        return ()
    config = _config(name, config_json)
    with convert_errors(
        FailureCode.BAD_CONFIG, f"environment {name!r} does not say what it needs beside it"
    ):
        return _names(kind.beside(config))


def _names(slot: object) -> tuple[str, ...]:
    """Return the names in a class attribute, which has one name or several."""
    several = slot if isinstance(slot, (tuple, list)) else (slot,)
    return tuple(name for name in several if isinstance(name, str) and name)


def _returned(factory: Callable[..., object]) -> object:
    """Return the annotated return type of a function; None if it cannot be resolved."""
    with suppress(WorkFailed), convert_errors("", "annotations are for type checkers first"):
        return get_type_hints(factory).get("return")
    return None


def is_replayable(name: str, config_json: str = "") -> bool:
    """Return True if lost sessions of an environment can be rebuilt. Raises WorkFailed."""
    kind = kind_of(name)
    if kind.waits and kind.replayable is not None:
        return kind.replayable
    environment = (make_environment if kind.waits else make_plain)(name, config_json)
    with convert_errors(
        FailureCode.RAISED, f"environment {name!r} does not say whether it is replayable"
    ):
        if not kind.waits:
            environment.close()
        return bool(environment.replayable)


def make_environment(name: str, config_json: str = "", host: Host | None = None) -> AnyEnvironment:
    """Build an environment from its name and the keyword arguments of its factory.

    An asynchronous one with a parameter `host` gets it. Raises WorkFailed: `unknown_environment`,
    or `bad_config` if the arguments do not fit.
    """
    factory = load("environment", name, SHIPPED)
    config = _config(name, config_json)
    _fit(name, factory, config, host)
    with convert_errors(
        FailureCode.BAD_CONFIG, f"environment {name!r} cannot be made of {config_json}"
    ):
        product = factory(**config)
        fits = all(hasattr(product, wanted) for wanted in WANTED)
    if not fits:
        msg = f"environment {name!r} makes a {type(product).__name__}; "
        msg += "it needs replayable, open, step and close"
        raise _bad_config(msg)
    return cast(AnyEnvironment, product)


def make_plain(name: str, config_json: str = "") -> Environment:
    """Build a synchronous environment, like `make_environment`.

    Raises WorkFailed(`bad_config`) for an asynchronous one.
    """
    environment = make_environment(name, config_json)
    if inspect.iscoroutinefunction(environment.step):
        msg = f"environment {name!r} waits, and was taken for one that does not; "
        msg += "name its class, or annotate what the function returns"
        raise _bad_config(msg)
    return cast(Environment, environment)


def _config(name: str, config_json: str) -> dict[str, Any]:
    with convert_errors(
        FailureCode.BAD_CONFIG, f"the config of environment {name!r} is not JSON: {config_json!r}"
    ):
        config = json.loads(config_json or "{}")
    if not isinstance(config, dict):
        msg = f"the config of environment {name!r} is {config_json!r}; it must be a JSON object"
        raise _bad_config(msg)
    return config


def _signature(factory: Callable[..., object]) -> inspect.Signature:
    """Return a factory's signature, cached: reading it takes longer than a quick reset."""
    known = _known_signature if isinstance(factory, Hashable) else inspect.signature
    return known(factory)


@lru_cache(maxsize=256)
def _known_signature(factory: Callable[..., object]) -> inspect.Signature:
    return inspect.signature(factory)


def _fit(
    name: str, factory: Callable[..., object], config: dict[str, Any], host: Host | None
) -> None:
    """Add the host if the factory takes one, and check the keys before it is called."""
    with convert_errors(
        FailureCode.BAD_CONFIG, f"the factory of environment {name!r} hides its arguments"
    ):
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
    return WorkFailed(code=FailureCode.BAD_CONFIG, message=message, retriable=False)
