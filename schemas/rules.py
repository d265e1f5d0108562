"""Rules: plug-ins with a name, needs, options and a source.

A recipe chooses advantages, losses, curators and other rules by name. All of them go through this
module, so that users' own rules work like ours, and invalid choices are refused before the start.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import Any, Generic, Self, TypeVar, get_type_hints

from rollcall.schemas import names
from rollcall.schemas.errors import Refused

F_co = TypeVar("F_co", bound=Callable[..., Any], covariant=True)


@dataclass(frozen=True, slots=True)
class NoOptions:
    """The options of a rule without options."""


class Need(StrEnum):
    """Data that a rule of the trainer needs beyond what every rule of its kind sees."""

    BATCH = "batch"
    """All groups of a batch, to compare them with each other."""
    CHANNELS = "channels"
    """The rewards of at least two scorers."""
    CUT_OFF = "cut_off"
    """The end of rollouts that run when a batch is complete; they are resumed later."""
    ENTROPY = "entropy"
    """The entropies of tokens at the step's start."""
    EWMA = "ewma"
    """Log-probabilities of a moving average of the weights."""
    GROUP = "group"
    """All rollouts of a task's group, to compare them with each other."""
    HISTORY = "history"
    """The mean entropy of the step before."""
    LIMITS = "limits"
    """Rollouts that ended at a limit."""
    LOGPROBS = "logprobs"
    """The sum of each trajectory's log-probabilities when it was sampled."""
    MU = "mu"
    """The engine's own log-probabilities as the denominator of the ratio."""
    NORMS = "norms"
    """The gradient norm of each trajectory at the step's start."""
    NOTED = "noted"
    """Log-probabilities that were noted before the weights that sampled were updated."""
    OWN_OLD = "own_old"
    """Log-probabilities of the trainer's own network at the time of sampling."""
    PROX = "prox"
    """Log-probabilities at the step's start."""
    REF = "ref"
    """Log-probabilities of the frozen reference."""
    SEQUENCE = "sequence"
    """One ratio for a whole sequence."""
    SNAPSHOT = "snapshot"
    """Log-probabilities of the kept weights that sampled each token."""
    STEP = "step"
    """All tokens of a step at its start."""
    TEACHER = "teacher"
    """A teacher's log-probabilities."""
    UNIFORM = "uniform"
    """The distance from the uniform distribution over tokens."""


@dataclass(frozen=True, slots=True)
class Rule(Generic[F_co]):
    """One algorithm behind one plug-in point."""

    name: str
    kind: str
    """The key by which a configuration chooses it: advantage, loss, curator, ..."""
    source: str
    """Paper and section, or the author."""
    function: F_co
    options: type = NoOptions
    """A frozen dataclass, whose defaults are the rule's defaults."""
    needs: frozenset[Need] = frozenset()
    """Data that the rule needs beyond what every rule of its kind sees."""
    stage: str = "T"
    """G, F, C, R or T: generate, filter, control, replay, train."""
    gives: frozenset[Need] = frozenset()
    """Data that this rule provides for other rules."""
    aggregate: str = ""
    """The aggregate of its source, if another aggregate would make it another rule."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function, so that `module:name` may name a rule."""
        return self.function(*arguments, **named)


@dataclass(frozen=True, slots=True)
class RuleChoice:
    """The configuration of one plug-in point: a name, and options if any."""

    name: str
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, kind: str, value: object) -> Self:
        """Read `"name"`, or a table that contains `name`. Raises Refused."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls(value)
        if isinstance(value, Mapping) and isinstance(value.get("name"), str):
            given = {key: _frozen(each) for key, each in value.items() if key != "name"}
            return cls(value["name"], tuple(sorted(given.items())))
        msg = f"{kind} is {value!r}; give a name, or a table with `name` and the rule's options"
        raise Refused(msg)

    def plain(self) -> str | dict[str, Any]:
        """Return the form of a configuration: the name alone if there are no options."""
        return {"name": self.name, **dict(self.options)} if self.options else self.name


@dataclass(frozen=True, slots=True)
class ChosenRule(Generic[F_co]):
    """A rule with its options."""

    rule: Rule[F_co]
    options: Any

    def __call__(self, *views: Any) -> Any:
        return self.rule.function(*views, self.options)

    @property
    def everything_needed(self) -> frozenset[Need]:
        """The needs of the rule, and those of its options (their attribute `needs`)."""
        return self.rule.needs | getattr(self.options, "needs", frozenset())

    def needs(self, what: Need) -> bool:
        return what in self.everything_needed

    def gives(self, what: Need) -> bool:
        return what in self.rule.gives


def table(*rules: Rule[F_co]) -> dict[str, Rule[F_co]]:
    """Return rules of one kind by name."""
    return {rule.name: rule for rule in rules}


def choose(kind: str, value: object, known: Mapping[str, Rule[F_co]]) -> ChosenRule[F_co]:
    """Return the rule that a configuration names, ours or `module:name`, with checked options.

    Raises Refused.
    """
    choice = RuleChoice.of(kind, value)
    rule = known.get(choice.name) or _users(kind, choice.name, known)
    if rule.kind != kind:
        msg = f"{kind} {choice.name!r} is a rule of kind {rule.kind!r}; give one of kind {kind!r}"
        raise Refused(msg)
    return ChosenRule(rule, options_of(rule, dict(choice.options)))


def options_of(rule: Rule[F_co], given: Mapping[str, Any]) -> Any:
    """Return a rule's options, with its defaults for those not given. Raises Refused."""
    hints = get_type_hints(rule.options)
    fields = {each.name: hints[each.name] for each in dataclasses.fields(rule.options)}
    for key, value in given.items():
        if key not in fields:
            if not fields:
                msg = f"{rule.kind} {rule.name!r} has no options, found {key!r}"
                raise Refused(msg)
            place = f"option of {rule.kind} {rule.name!r}"
            raise names.unknown_name(place, key, fields)
        if not _fits(value, fields[key]):
            wanted = getattr(fields[key], "__name__", str(fields[key]))
            msg = f"{rule.kind} {rule.name!r}: {key} is {value!r}; give a finite {wanted}"
            raise Refused(msg)
    try:
        return rule.options(**given)
    except Refused as error:
        msg = f"{rule.kind} {rule.name!r}: {error}"
        raise Refused(msg) from error


def require(key: str, value: object, holds: bool, remedy: str) -> None:
    """Raise Refused for an invalid value; for `__post_init__` of options."""
    if not holds:
        msg = f"{key} is {value!r}; {remedy}"
        raise Refused(msg)


def _users(kind: str, name: str, known: Iterable[str]) -> Rule[Any]:
    if ":" not in name:
        raise names.unknown_name(kind, name, known)
    found = names.load(kind, name)
    return found if isinstance(found, Rule) else _plain(kind, name, found)


def _plain(kind: str, name: str, function: Callable[..., Any]) -> Rule[Any]:
    """Make a rule of a function without options. It may read whole groups, so they stay whole."""

    def called(*arguments: Any) -> Any:
        return function(*arguments[:-1])

    return Rule(name, kind, f"{name}, a user's", called, needs=frozenset({Need.GROUP}))


def _frozen(value: object) -> object:
    """Make a value of a configuration file hashable: lists become tuples."""
    return tuple(_frozen(each) for each in value) if isinstance(value, list) else value


def _fits(value: object, wanted: object) -> bool:
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    if wanted in (int, str, bool):
        return type(value) is wanted
    return True
