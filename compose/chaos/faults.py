"""The faults and their schedule: pure, all of it drawn from one seed.

A schedule begins with a round in which every role is killed once and every other kind of fault
happens once; behind that, faults are drawn by weight. So also a short run has seen all of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

from schemas.errors import Refused
from schemas.names import unknown

WORKERS = ("agents", "models", "environments", "rewards")
SERVICES = ("broker", "registry")
PROCESSES = "processes"
"""Those of hosted agents; each belongs to an environments worker."""
BOXES = "boxes"
"""Of agents that act in a shell: any that a worker holds just now."""
ENGINE = "engine"
"""A docker engine of the run's own, in whose containers half of those shells are."""
STRANGER = "stranger"
"""A producer that is none of ours, and holds transactions open on our topics."""
CLOCKS = "clocks"
"""The wall clock of one worker."""
IDS = "ids"
"""Those of the registry's schemas, as one worker is told them."""
STORE = "store"
"""Where heavy records lie."""
LOG = "log"
"""The end of a partition of the requests."""
AROUND = (CLOCKS, IDS, STORE, LOG)
"""What no release beside ours is harmed by: an older one may not know how to stand it."""
ROLES = (*WORKERS, PROCESSES, BOXES, ENGINE, "training", *SERVICES, STRANGER, *AROUND)
"""What `--kill` may name."""
USUAL = tuple(role for role in ROLES if role != ENGINE)
"""Who is harmed where nobody is named: an engine takes root, and docker installed."""

KILL, PAUSE = "kill", "pause"
TRANSACTION = "open transaction"
SET_BACK, DEALT_ANEW, AWAY, CUT_OFF = "set back", "dealt anew", "away", "cut off"
CUT, CUT_TO_BROKER, CUT_TO_CLIENT, FLAP = "cut", "cut to broker", "cut from broker", "flapping"
CUT_REGISTRY = "cut from registry"
"""Killed too, so that it has to come back without: whoever works already seldom asks."""
CLOCK = "clock set back"
"""Killed too: a worker reads the time of day at its start, and counts on from there."""
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
"""What may happen to whom, by weight."""
WEIGHTS = {
    **dict.fromkeys((*WORKERS, PROCESSES, BOXES, "registry"), 10),
    **dict.fromkeys(AROUND, 3),
    **dict.fromkeys((ENGINE, "training", "broker", STRANGER, LOG), 2),
}
"""How often a role is hit, whatever the number of its processes."""
KILL_WEIGHTS = {**WEIGHTS, ENGINE: 0.5, "training": 0.5, "broker": 0.5, "registry": 4}
"""The same for a soak of kills. Broker and trainer take seconds to come back; so does the registry,
which is killed as often as a single worker."""
DOWN_S = {"broker": 10.0, "registry": 5.0, ENGINE: 5.0}
"""A killed service is started again after at most so long; a worker at once."""
LIVES_S = {"training": 4.0}
"""In a soak these are killed anywhere within so long after they are back: no point of a step is
safer than another. The others are killed as soon as there was progress."""
SHORTEST_S = 1.0
SESSIONS = 2.0
"""Pauses and cuts last up to so many session timeouts, so every other one makes a zombie."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that happens to one process."""

    at_s: float
    """Not before; a victim that is still harmed, or not yet back, is waited for."""
    kind: str
    role: str
    victim: str
    lasts_s: float
    after_s: float = 0.0
    """So long it has been at work before, whether there was progress or not; 0: there has to be."""


Victims = Mapping[str, Sequence[str]]
"""The names of the processes of each role."""


def roles_of(text: str) -> tuple[str, ...]:
    """Read `--kill`; raises Refused for what is no role."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in ROLES:
            raise unknown("role", name, ROLES)
    if not names:
        msg = f"--kill names nobody; choose among {', '.join(ROLES)}"
        raise Refused(msg)
    return tuple(role for role in ROLES if role in names)


def mixed(
    seed: int, victims: Victims, *, seconds: float, every_s: float, session_s: float
) -> list[Fault]:
    """Faults of every kind over so many seconds, `every_s` apart on average."""
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
    """So many SIGKILLs and nothing else; each process that is back may be the next one."""
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
    """Kind and role of one fault after the other, without an end."""
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
