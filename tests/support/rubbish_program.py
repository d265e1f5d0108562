"""Programs that do what none should: each move of theirs is drawn, and named in the request."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from rollcall.consumers.agents.effects import (
    Agent,
    Begun,
    CallModel,
    Finish,
    Reset,
    Step,
    Task,
    WishFailed,
    user,
)
from rollcall.schemas.errors import (
    DeterminismError,
    ProgramFailed,
    Refused,
    Unavailable,
    WorkFailed,
)
from rollcall.schemas.messages import Message, Sampling

RUBBISH = "tests.support.rubbish_program:rubbish"
NAN, INF, HUGE = float("nan"), float("inf"), 10**5000
ASKED = (user("x"),)


class Boom(BaseException):
    """What no program should raise."""


class Mute(Exception):
    """An error that cannot even be told."""

    def __str__(self) -> str:
        raise Boom


class Spiteful(list[Any]):
    """A list that cannot be looked at."""

    def __iter__(self) -> NoReturn:
        raise Boom

    def __len__(self) -> NoReturn:
        raise Boom

    def __repr__(self) -> NoReturn:
        raise Boom


class Odd(str):
    """A text that is none when it is asked."""

    __slots__ = ()

    def isascii(self) -> NoReturn:
        raise Boom


@dataclass(frozen=True)
class Trap(CallModel):
    """A wish that bites."""

    @property
    def sampling(self) -> NoReturn:  # type: ignore[override]
        raise Boom


def _raises(error: BaseException) -> Callable[[], NoReturn]:
    def go() -> NoReturn:
        raise error

    return go


def _recurses() -> object:
    return _recurses()


YIELDED: dict[str, Callable[[], Any]] = {
    "call": lambda: CallModel([user("well")]),
    "calls": lambda: [CallModel([user("left")]), CallModel([user("right")])],
    "none": lambda: None,
    "number": lambda: HUGE,
    "nothing": list,
    "spite": Spiteful,
    "spiteful messages": lambda: CallModel(Spiteful([user("x")])),
    "spoilt list": lambda: [CallModel([user("left")]), CallModel(Spiteful())],
    "no messages": lambda: CallModel([]),
    "no message": lambda: CallModel([object()]),  # type: ignore[list-item]
    "surrogate": lambda: CallModel([user("\udce9")]),
    "odd text": lambda: CallModel([user(Odd("x"))]),
    "odd role": lambda: CallModel([Message(7, "x")]),  # type: ignore[arg-type]
    "nobody's policy": lambda: CallModel(ASKED, policy_id="nobody"),
    "policy of no name": lambda: CallModel(ASKED, policy_id="../x?#"),
    "long policy": lambda: CallModel(ASKED, policy_id="p" * 100_000),
    "begun by rubbish": lambda: CallModel(
        [Message("a", "\udce9"), user("x")], begun=Begun(1, b"0000")
    ),
    "hot": lambda: CallModel(ASKED, sampling=Sampling(temperature=10**400)),
    "hotter": lambda: CallModel(ASKED, sampling=Sampling(temperature=HUGE)),
    "not a number": lambda: CallModel(ASKED, sampling=Sampling(NAN, NAN)),
    "infinite": lambda: CallModel(ASKED, sampling=Sampling(INF, -INF, -5, -1)),
    "trap": lambda: Trap(ASKED),
    "large": lambda: CallModel([user("\u4e2d" * 400_000)]),
    "reset": lambda: Reset("s", "nothing there", "{", 1),
    "far seed": lambda: Reset(seed=2**70),
    "step outside": lambda: Step("x", "nowhere"),
    "odd step": lambda: Step(Odd("x")),
    "finish": lambda: Finish("well"),
    "finish oddly": lambda: Finish(Spiteful()),  # type: ignore[arg-type]
    "finish with a number": lambda: Finish(HUGE),  # type: ignore[arg-type]
    "finish with a surrogate": lambda: Finish("\udce9"),
    "finish at length": lambda: Finish("\u4e2d" * 199_000),
    "raise": _raises(ValueError("\udce9" * 10_000)),
    "mute": _raises(Mute()),
    "boom": _raises(Boom()),
    "exit": _raises(SystemExit(3)),
    "interrupt": _raises(KeyboardInterrupt()),
    "generator exit": _raises(GeneratorExit()),
    "stop": _raises(StopIteration()),
    "memory": _raises(MemoryError()),
    "recursion": _recurses,
    "odd code": _raises(ProgramFailed(Spiteful(), "\udce9")),  # type: ignore[arg-type]
    "our own": _raises(DeterminismError("no")),
    "refused": _raises(Refused("no")),
    "unavailable": _raises(Unavailable("no")),
    "work failed": _raises(WorkFailed(7, 8, retriable=True)),  # type: ignore[arg-type]
}


def rubbish(task: Task) -> Agent:
    """Make the moves that the request names; what fails is shrugged off."""
    for move in task.config["moves"]:
        try:
            yield YIELDED[move]()
        except WishFailed:
            continue
        except GeneratorExit:
            if task.config.get("clings"):
                yield CallModel([user("never")])
            raise
