"""The options of a chaos run, and its processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollcall.compose.chaos.faults import (
    AROUND,
    BOXES,
    CLOCKS,
    ENGINE,
    IDS,
    KILL,
    KINDS,
    LOG,
    PROCESSES,
    SERVICES,
    STORE,
    STRANGER,
    Fault,
    kills,
    mixed,
)
from rollcall.schemas.errors import Refused
from rollcall.schemas.names import unknown_name

WORKERS = {"agents": 3, "models": 2, "environments": 2, "rewards": 2}
"""The number of the workload's workers, by role."""
SERVER = "trained-1"
"""The model server of the training run; it gets faults together with its trainer."""
TRAINING = "training"
RECIPES = (TRAINING, "training-async")
"""The recipes beside this module; every release can run the first."""
EVERY_S = 4.0
"""The mean time between two faults; shorter in a short run, so that it has every kind."""
ROUND = 34
"""A short run's length in mean distances: 22 faults come first, at most 1.5 distances apart."""
SOAK_EVERY_S = 0.2


def processes_of(worker: str) -> str:
    """Return the name of the victim for the agents' processes of an environments worker."""
    return f"{PROCESSES} of {worker}"


def clock_of(worker: str) -> str:
    """Return the name of the victim for the wall clock of a worker."""
    return f"{CLOCKS} of {worker}"


def ids_of(worker: str) -> str:
    """Return the name of the victim for the registry as a worker sees it."""
    return f"{IDS} of {worker}"


@dataclass(frozen=True, slots=True)
class ChaosPlan:
    """A plan: faults of all kinds for `minutes`, or a soak of `kills` SIGKILLs."""

    seed: int
    roles: Sequence[str]
    minutes: float | None = None
    kills: int | None = None
    rollouts: int | None = None
    """The number of rollouts; None: as many as keep the workers busy."""
    recipe: str = TRAINING
    """The recipe of the training run: one of `RECIPES`, or a file."""
    beside: Path | None = None
    """A wheel of another release: half of the workers run it, and a killed worker restarts with
    the other release. Then no rollouts are hosted and none have boxes."""

    def __post_init__(self) -> None:
        lengths = {"minutes": self.minutes, "kills": self.kills, "rollouts": self.rollouts}
        for name, value in lengths.items():
            if value is not None and value <= 0:
                msg = f"--{name} is {value:g}; it must be more than 0"
                raise Refused(msg)
        if self.beside is not None and not self.beside.is_file():
            msg = f"--beside {self.beside}: there is no such file"
            raise Refused(msg)
        self._refuse_recipe()
        if not self.hosts and set(self.roles) <= {PROCESSES, BOXES, ENGINE, *AROUND}:
            msg = (
                "--beside WHEEL goes without hosted rollouts and without boxes, so there are no "
                f"{', '.join(self.roles)} to kill"
            )
            raise Refused(msg)
        if self.kills is not None and not any(KILL in KINDS[role] for role in self.roles):
            msg = f"--kills kills, and {', '.join(self.roles)} cannot be killed; give --minutes"
            raise Refused(msg)
        if (self.minutes is None) == (self.kills is None):
            msg = "give either --minutes, for faults of all kinds, or --kills, for a soak of kills"
            raise Refused(msg)

    def _refuse_recipe(self) -> None:
        if self.recipe not in RECIPES and not Path(self.recipe).is_file():
            raise unknown_name("recipe", self.recipe, RECIPES)
        if self.recipe != TRAINING and not self.trains:
            msg = f"--recipe {self.recipe} is of a run that nobody harms; name training in --kill"
            raise Refused(msg)

    @property
    def soak(self) -> bool:
        return self.kills is not None

    @property
    def session_s(self) -> float:
        """The session timeout of the groups; shorter in a soak."""
        return 2.0 if self.soak else 6.0

    @property
    def hosts(self) -> bool:
        """True if some rollouts are hosted, and some act in a box."""
        return self.beside is None

    @property
    def containers(self) -> bool:
        """True if a docker engine is started, and gets faults."""
        return self.hosts and ENGINE in self.roles

    @property
    def trains(self) -> bool:
        return "training" in self.roles

    @property
    def seconds(self) -> float:
        """The time during which faults begin."""
        return 60 * self.minutes if self.minutes else float("inf")

    def workers(self) -> dict[str, list[str]]:
        """Return the names of the worker processes, by role."""
        # If only the trainer gets faults, one worker a role is enough, which leaves it the cores.
        counts = dict.fromkeys(WORKERS, 1) if set(self.roles) == {"training"} else WORKERS
        names = {role: [f"{role}-{n + 1}" for n in range(counts[role])] for role in WORKERS}
        if self.trains:
            names["models"].append(SERVER)
            names["training"] = ["training-1"]
        return names

    def victims(self) -> dict[str, list[str]]:
        """Return the names of the victims, by role."""
        everybody = {**self.workers(), **{name: [name] for name in (*SERVICES, STRANGER)}}
        if self.trains:
            everybody["models"].remove(SERVER)
            everybody["training"].append(SERVER)
        if self.hosts:
            hosts = everybody["environments"]
            everybody[PROCESSES] = [processes_of(host) for host in hosts]
            everybody |= {BOXES: [BOXES], ENGINE: [ENGINE], STORE: [STORE], LOG: [LOG]}
            workers = [name for role in WORKERS for name in everybody[role]]
            everybody[CLOCKS] = [clock_of(worker) for worker in workers]
            everybody[IDS] = [ids_of(worker) for worker in workers]
        return {role: everybody[role] for role in self.roles if role in everybody}

    def faults(self) -> list[Fault]:
        victims: Mapping[str, Sequence[str]] = self.victims()
        if self.kills is not None:
            return kills(self.seed, victims, count=self.kills, every_s=SOAK_EVERY_S)
        every_s = min(EVERY_S, self.seconds / ROUND)
        return mixed(
            self.seed, victims, seconds=self.seconds, every_s=every_s, session_s=self.session_s
        )
