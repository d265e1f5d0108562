"""Real boxes that die when a test says so, and a host that lends them."""

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from rollcall.sandbox import process_tree
from rollcall.sandbox.boxes.box import Box, BoxProgram, Spec, driver
from rollcall.sandbox.boxes.pool import Mode
from rollcall.schemas.claims import claim_of


def kill(box: Box) -> None:
    """As if the host had no memory left: what the box stands on is gone, and all in it, at once."""
    real = cast(Any, box)
    confinement = getattr(real, "_confinement", None)
    # The first process of a confined box ends after all others; from another they go one by one.
    pids = [confinement.within] if confinement else _supervisors(real._supervisor._process.pid)
    others = [] if confinement else [child for pid in pids for child in _below(pid)]
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    while any(map(_runs, [*pids, *others])):
        os.sched_yield()


def _below(pid: int) -> list[int]:
    return [each for child in process_tree.children(pid) for each in (child, *_below(child))]


def _runs(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def _supervisors(reaper: int) -> list[int]:
    """It is only being forked where the box has just been opened."""
    while not (found := list(process_tree.children(reaper))):
        os.sched_yield()
    return found


class MortalHost:
    """Fulfils `rollcall.sandbox.host.Host` as far as a shell asks; `fate` is told of every start.

    It is called with the box, how many boxes there were before it, how many programs were started
    in it before, and whether this one has been started yet.
    """

    def __init__(self, fate: Callable[[Box, int, int, bool], None]) -> None:
        self.fate = fate
        self.place = "a test"
        self.lent = 0
        self.reasons: list[str] = []
        self.kept: dict[str, bytes] = {}
        self.modes: list[str] = []

    @property
    def boxes(self) -> "MortalHost":
        return self

    async def lend(self, name: str | None, spec: Spec, mode: Mode = "persistent") -> Box:
        box = await driver(name or "local").open(spec)
        number, self.lent = self.lent, self.lent + 1
        self.modes.append(mode)
        start, starts = box.start, 0

        async def watched(*argv: str, env: Mapping[str, str] | None = None) -> BoxProgram:
            nonlocal starts
            nth, starts = starts, starts + 1
            self.fate(box, number, nth, False)
            program = await start(*argv, env=env)
            self.fate(box, number, nth, True)
            return program

        box.start = watched  # type: ignore[method-assign]
        return box

    async def give_back(self, box: Box, reason: str = "") -> None:
        self.reasons.append(reason)
        await asyncio.shield(box.close())

    def keep(self, name: str, content: bytes) -> str:
        claim = claim_of(content)
        self.kept[claim.uri] = content
        return claim.uri
