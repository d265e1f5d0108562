"""A driver whose boxes do the odd things that real ones do, when they are told to."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import cast

from rollcall.sandbox.boxes.box import Box, Driver, Spec, drawn_ident
from rollcall.schemas.errors import WorkFailed


class OddBox:
    """Has a shell that answers as long as it lives."""

    def __init__(self, driver: "OddDriver", ident: str, number: int) -> None:
        self.driver = driver
        self.ident = ident
        self.number = number
        self.directory = b"/w"
        self.shown: Mapping[bytes, bytes] = {}
        self.alive = number not in driver.dead_on_arrival
        self.closes = 0

    async def stand_by(self, within_s: float) -> None:
        await asyncio.sleep(0)
        if not self.alive:
            msg = f"box {self.number} is dead"
            raise WorkFailed("box_died", msg, retriable=True)

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closes += 1
        if self.number in self.driver.clinging:
            msg = f"box {self.number} clings"
            raise WorkFailed("box_died", msg, retriable=True)
        self.driver.there.pop(self.ident, None)


class OddDriver(Driver):
    """Numbers its boxes from 0, in the order in which they begin to start."""

    def __init__(self, name: str = "odd") -> None:
        self.name = name
        self.there: dict[str, OddBox] = {}
        self.opened: list[Spec] = []
        self.starting = 0
        self.most_starting = 0
        self.gate: asyncio.Event | None = None
        """Where there is one, no start ends before it is set."""
        self.failing: set[int] = set()
        self.why = ""
        self.dead_on_arrival: set[int] = set()
        self.clinging: set[int] = set()
        """Boxes whose close fails; `remove` gets them."""
        self.stuck = False
        """Whether `remove` fails too."""
        self.removed: list[str] = []

    async def open(self, spec: Spec, ident: str = "") -> Box:
        number = len(self.opened)
        self.opened.append(spec)
        self.starting += 1
        self.most_starting = max(self.most_starting, self.starting)
        try:
            await asyncio.sleep(0)
            if self.gate is not None:
                await self.gate.wait()
        finally:
            self.starting -= 1
        if number in self.failing:
            msg = self.why or f"box {number} does not start"
            raise WorkFailed("box_unavailable", msg, retriable=True)
        box = self.there[ident] = OddBox(self, drawn_ident(ident), number)
        return cast(Box, box)

    def enforces(self) -> Mapping[str, str]:
        return {}

    async def found(self) -> Sequence[str]:
        await asyncio.sleep(0)
        return list(self.there)

    async def remove(self, ident: str) -> None:
        await asyncio.sleep(0)
        if self.stuck:
            msg = f"box {ident} is stuck"
            raise WorkFailed("box_died", msg, retriable=True)
        self.removed.append(ident)
        self.there.pop(ident, None)
