"""The faults and their schedule: pure functions of one seed.

A schedule begins with a round in which every role is killed once and every other kind of fault
happens once; then faults are drawn by weight. So even a short run has all of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

from rollcall.schemas.errors import Refused
from rollcall.schemas.names import unknown_name

WORKERS = ("agents", "models", "environments", "rewards")
SERVICES = ("broker", "registry")
PROCESSES = "processes"
"""The role of hosted agents' processes; each belongs to an environments worker."""
BOXES = "boxes"
"""The role of agents' shells' boxes: any that a worker holds."""
ENGINE = "engine"
"""The role of the run's own docker engine, which runs half of those shells."""
STRANGER = "stranger"
"""The role of a foreign producer that holds transactions open on our topics."""
CLOCKS = "clocks"
"""The role of a worker's wall clock."""
IDS = "ids"
"""The role of the registry's schema ids, as one worker sees them."""
STORE = "store"
"""The role of the store of heavy records."""
LOG = "log"
"""The role of the end of a partition of the requests."""
AROUND = (CLOCKS, IDS, STORE, LOG)
"""Roles that are left out beside another release, which may not tolerate their faults."""
ROLES = (*WORKERS, PROCESSES, BOXES, ENGINE, "training", *SERVICES, STRANGER, *AROUND)
"""The roles that `--kill` may name."""
USUAL = tuple(role for role in ROLES if role != ENGINE)
"""The default roles: without the engine, which needs root and an installed docker."""

KILL, PAUSE = "kill", "pause"
TRANSACTION = "open transaction"
SET_BACK, DEALT_ANEW, AWAY, CUT_OFF = "set back", "dealt anew", "away", "cut off"
CUT, CUT_TO_BROKER, CUT_TO_CLIENT, FLAP = "cut", "cut to broker", "cut from broker", "flapping"
CUT_REGISTRY = "cut from registry"
"""The worker is killed too, so that it starts without the registry; a running one rarely asks."""
CLOCK = "clock set back"
"""The worker is killed too, as it reads the time of day at its start and counts from there."""
SET_BACK_S = 7200.0
CUTS = (CUT, CUT_TO_BROKER, CUT_TO_CLIENT, FLAP, CUT_REGISTRY)
KINDS: Mapping[str, Mapping[str, float]] = {
    **{role: {KILL: 4, PAUSE: 2, **dict.fromkeys((*CUTS, CLOCK), 1)} for role in WORKERS},
    **{role: {KILL: 2, PAUSE: 1} for role in SERVICES},
    "training": {KILL: 2, PAUSE: 1, CLOCK: 1},
    PROCESSES: {KILL: 1},
    BOXES: {KILL: 1},
    ENGINE: {KILL: 2, PAUSE: 1},
    STRANGER: {TRANSACTION: 1},
    CLOCKS: {SET_BACK: 1},
    IDS: {DEALT_ANEW: 1},
    STORE: {AWAY: 1},
    LOG: {CUT_OFF: 1},
}
"""The kinds of faults of each role, by weight."""
WEIGHTS = {
    **dict.fromkeys((*WORKERS, PROCESSES, BOXES, "registry"), 10),
    **dict.fromkeys(AROUND, 3),
    **dict.fromkeys((ENGINE, "training", "broker", STRANGER, LOG), 2),
}
"""The weight of each role, independent of its number of processes."""
KILL_WEIGHTS = {**WEIGHTS, ENGINE: 0.5, "training": 0.5, "broker": 0.5, "registry": 4}
"""The weights in a soak of kills. Broker and trainer take seconds to restart; so does the registry,
which is killed as often as a single worker."""
DOWN_S = {"broker": 10.0, "registry": 5.0, ENGINE: 5.0}
"""The most time until a killed service is restarted; a worker is restarted at once."""
LIVES_S = {"training": 4.0}
"""The time after a restart within which a soak kills these at random, since every point of a step
must be safe. The others are killed as soon as there was progress."""
SHORTEST_S = 1.0
SESSIONS = 2.0
"""The most duration of pauses and cuts in session timeouts, so every second one makes a zombie."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one process."""

    at_s: float
    """The earliest time; the fault waits for a victim that has not recovered."""
    kind: str
    role: str
    victim: str
    lasts_s: float
    after_s: float = 0.0
    """The time at work before the fault, regardless of progress; 0: it waits for progress."""


Victims = Mapping[str, Sequence[str]]
"""The names of the processes of each role."""


def roles_of(text: str) -> tuple[str, ...]:
    """Parse `--kill`; raises Refused for an unknown role."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in ROLES:
            raise unknown_name("role", name, ROLES)
    if not names:
        msg = f"--kill names nobody; choose among {', '.join(ROLES)}"
        raise Refused(msg)
    return tuple(role for role in ROLES if role in names)


def mixed(
    seed: int, victims: Victims, *, seconds: float, every_s: float, session_s: float
) -> list[Fault]:
    """Return faults of every kind over `seconds`, `every_s` apart on average."""
    dice = Random(f"faults/{seed}")
    faults, at_s = [], 0.0
    for kind, role in _kinds(dice, list(victims)):
        at_s += dice.uniform(0.5, 1.5) * every_s
        if at_s >= seconds:
            break
        lasts_s = _lasts_s(dice, kind, role, session_s)
        faults.append(Fault(at_s, kind, role, dice.choice(victims[role]), lasts_s))
    return faults


def kills(seed: int, victims: Victims, *, count: int, every_s: float) -> list[Fault]:
    """Return `count` SIGKILLs; any recovered process may be the next one."""
    dice = Random(f"kills/{seed}")
    roles = [role for role in victims if KILL in KINDS[role]]
    weights = [KILL_WEIGHTS[role] for role in roles]
    faults, at_s = [], 0.0
    for role in islice(_draws(dice, roles, weights), count):
        at_s += dice.uniform(0.0, 2.0) * every_s
        victim, lives_s = dice.choice(victims[role]), LIVES_S.get(role, 0.0)
        faults.append(Fault(at_s, KILL, role, victim, 0.0, dice.uniform(0.0, lives_s)))
    return faults


def _kinds(dice: Random, roles: list[str]) -> Iterator[tuple[str, str]]:
    """Yield kind and role of faults without end."""
    workers = [role for role in roles if role in WORKERS]
    first = [(next(iter(KINDS[role])), role) for role in roles]
    if pausable := [role for role in roles if PAUSE in KINDS[role]]:
        first.append((PAUSE, dice.choice(pausable)))
    if workers:
        first += [(kind, dice.choice(workers)) for kind in (*CUTS, CLOCK)]
    dice.shuffle(first)
    yield from first
    for role in _draws(dice, roles, [WEIGHTS[role] for role in roles]):
        kinds = KINDS[role]
        yield dice.choices(list(kinds), list(kinds.values()))[0], role


def _draws(dice: Random, roles: list[str], weights: list[float]) -> Iterator[str]:
    while True:
        yield dice.choices(roles, weights)[0]


def _lasts_s(dice: Random, kind: str, role: str, session_s: float) -> float:
    if kind == KILL:
        return dice.uniform(0.0, DOWN_S.get(role, 0.0))
    return dice.uniform(SHORTEST_S, SESSIONS * session_s)
