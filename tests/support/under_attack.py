"""Boxes under attack: every attack in a box of its own, and what is looked at after each.

    python -m tests.support.under_attack

prints the table of sandbox/README.md, for the drivers that this machine has.
"""

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rollcall.sandbox.boxes.box import Box, BoxLimits, Driver, Spec
from rollcall.sandbox.boxes.bubblewrap import BubblewrapDriver
from rollcall.sandbox.boxes.cgroups import Cgroups
from rollcall.sandbox.boxes.docker_driver import DockerDriver
from rollcall.sandbox.boxes.shell import Shell
from tests.support.attacks import ATTACKS, Attack
from tests.support.engines import IMAGE

LIMITS = BoxLimits(
    memory_bytes=128 << 20, processes=64, file_bytes=4 << 20, open_files=200, disk_bytes=8 << 20
)
SIDE_BY_SIDE = 6
HELD, NOT_CLAIMED = "held", "not claimed"
ORDINARY_USER = 61_234
"""Nobody's: what the boxes of somebody who is not root run as, where root runs the tests."""


def drivers() -> dict[str, Driver]:
    """Those that claim isolation, by the column of the table; an ordinary user's among them."""
    found: dict[str, Driver] = {}
    if shutil.which("bwrap"):
        unbound = Cgroups(Path("/nowhere"))
        if os.getuid() == 0:
            found["bubblewrap, root"] = BubblewrapDriver()
            found["bubblewrap, user"] = BubblewrapDriver(cgroups=unbound, user=ORDINARY_USER)
        else:
            found["bubblewrap, user"] = BubblewrapDriver(cgroups=unbound)
    if IMAGE:
        found["docker"] = DockerDriver(IMAGE)
    return found


@dataclass(slots=True)
class Canaries:
    """What lies and listens on the host for the time of the attacks."""

    directory: Path
    victim: "subprocess.Popen[bytes]"
    sockets: list[socket.socket]
    variables: dict[str, str]
    kernel: Mapping[str, str] = field(default_factory=dict)

    def touched(self) -> list[str]:
        """What is not as it was."""
        wrong = [f"{path} changed" for path, was in self.kernel.items() if _read(path) != was]
        if (self.directory / "secret").read_text() != "kept\n":
            wrong.append("a file of the host was written")
        if sorted(path.name for path in self.directory.iterdir()) != ["secret", "socket"]:
            wrong.append("a directory of the host was written")
        if self.victim.poll() is not None:
            wrong.append("a process of the host was killed")
        for listening in self.sockets:
            with contextlib.suppress(BlockingIOError):
                listening.recvfrom(1) if listening.type == socket.SOCK_DGRAM else listening.accept()
                wrong.append(f"{listening.getsockname()} was reached")
        return wrong


@contextlib.contextmanager
def canaries() -> Iterator[Canaries]:
    """All may write and reach them who see them."""
    directory = Path(tempfile.mkdtemp(prefix="canary-"))
    directory.chmod(0o777)
    (directory / "secret").write_text("kept\n")
    (directory / "secret").chmod(0o666)
    os.environ["WORKERS_SECRET"] = "kept"
    argv = [sys.executable, "-c", "import time; time.sleep(3600)", "canary-victim"]
    abstract = f"canary-{os.getpid()}"
    with (
        socket.create_server(("", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as nameless,
        socket.socket(socket.AF_UNIX) as named,
        subprocess.Popen(argv) as victim,
    ):
        udp.bind(("127.0.0.1", 0))
        nameless.bind("\0" + abstract)
        named.bind(str(directory / "socket"))
        (directory / "socket").chmod(0o777)
        for listening in (tcp, udp, nameless, named):
            listening.setblocking(False)
            if listening.type == socket.SOCK_STREAM:
                listening.listen()
        variables = {
            "CANARY": str(directory),
            "VICTIM": str(victim.pid),
            "TCP": str(tcp.getsockname()[1]),
            "UDP": str(udp.getsockname()[1]),
            "ABSTRACT": abstract,
            "ADDRESS": _own_address(),
            "PIDS": str(LIMITS.processes),
            "FILES": str(LIMITS.open_files),
            "DISK": str(LIMITS.disk_bytes),
            "FILE": str(LIMITS.file_bytes),
            "MEMORY": str(LIMITS.memory_bytes),
        }
        kernel = {path: _read(path) for path in KERNEL_FILES}
        try:
            yield Canaries(directory, victim, [tcp, udp, nameless, named], variables, kernel)
        finally:
            victim.kill()
            os.environ.pop("WORKERS_SECRET")
            shutil.rmtree(directory)


KERNEL_FILES = tuple(
    f"/proc/sys/kernel/{name}" for name in ("core_pattern", "modprobe", "hostname", "sysrq")
)


async def attacked(driver: Driver) -> dict[str, str]:
    """What came of every attack, by its name: held, not claimed, or what went wrong."""
    came: dict[str, str] = {}
    mounts = _mounts()
    with canaries() as there:
        witness = await driver.open(Spec(limits=LIMITS))
        alive = _Witness(witness)
        room = asyncio.Semaphore(SIDE_BY_SIDE)

        async def one(attack: Attack) -> None:
            async with room:
                came[attack.name] = await _outcome(driver, attack, there, alive)

        # Those of one user count each other's processes: who bombs does it alone.
        side_by_side = [attack for attack in ATTACKS if attack.claim != "pids"]
        await asyncio.gather(*(one(attack) for attack in side_by_side))
        for attack in ATTACKS:
            if attack.claim == "pids":
                await one(attack)
        await witness.close()
    left = sorted(_mounts() - mounts)
    assert not left, f"mounts are left: {left}"
    return {attack.name: came[attack.name] for attack in ATTACKS}


async def _outcome(driver: Driver, attack: Attack, there: Canaries, alive: "_Witness") -> str:
    claimed = _claims(driver, attack)
    limits = LIMITS
    if attack.claim != "pids" and not claimed_as_a_whole(driver, "pids"):
        limits = BoxLimits(LIMITS.memory_bytes, 4096, LIMITS.file_bytes, 200, LIMITS.disk_bytes)
    box = await driver.open(Spec(limits=limits, env=there.variables))
    try:
        output = await _tried(box, attack, alive)
        wrong = await _reads(box)
    finally:
        await box.close()
    wrong += there.touched()
    if claimed and "ESCAPED" in output:
        wrong.append(f"it says {output[-200:]!r}")
    if not await alive.answers():
        wrong.append("the worker does not answer")
    if box.ident in await driver.found():
        wrong.append("something is left of the box")
    if left := _processes_of(box.ident, getattr(driver, "user_of", None)):
        wrong.append(f"processes are left: {left}")
    if not claimed and not wrong:
        return NOT_CLAIMED
    return "; ".join(wrong) or HELD


async def _tried(box: Box, attack: Attack, alive: "_Witness") -> str:
    """Run an attack, and beside it what another box does meanwhile; return what it prints."""
    if not attack.beside:
        return (await box.run(attack.argv(), timeout_s=attack.timeout_s)).output
    program = await box.start("/usr/bin/env", *attack.argv())
    said = b""
    try:
        async with asyncio.timeout(attack.timeout_s):
            while b"HELD" not in said and (chunk := await program.read(1 << 16)):
                said += chunk
            ran = await alive.box.run(attack.argv_beside(), timeout_s=attack.timeout_s)
            if "FREE" not in ran.output:
                said += b"ESCAPED: beside it " + ran.output.encode()
            program.close_input()
            while chunk := await program.read(1 << 16):
                said += chunk
    finally:
        await program.end()
    return said.decode(errors="replace")


async def _reads(box: Box) -> list[str]:
    """What the worker does after an attack must do no harm either: it takes the files."""
    with contextlib.suppress(Exception):
        await box.get(".", most_bytes=1 << 20)
    return []


class _Witness:
    """A box and a shell in it that were there before all attacks."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self._shell = Shell(box)
        self._turn = asyncio.Lock()

    async def answers(self) -> bool:
        async with self._turn:
            ran = await self._shell.run("echo on", timeout_s=30)
            return ran.output == "on\n"


def claimed_as_a_whole(driver: Driver, what: str) -> bool:
    """Whether a box is bound, and not each of its processes."""
    return not driver.enforces().get(what, "rlimits").startswith("rlimits")


def _claims(driver: Driver, attack: Attack) -> bool:
    if attack.claim == "own user":
        return "of its own" in driver.enforces().get("user", "")
    what, _, whole = attack.claim.partition(" of the ")
    if whole:
        return claimed_as_a_whole(driver, what)
    return not what or what in driver.enforces()


def _processes_of(ident: str, user_of: object) -> list[int]:
    user = user_of(ident) if callable(user_of) else 0
    if user in (0, ORDINARY_USER):  # shared with boxes that still run
        return []
    return [
        int(path.name)
        for path in Path("/proc").glob("[0-9]*")
        if f"Uid:\t{user}" in _read(str(path / "status"))
    ]


def _mounts() -> set[str]:
    return {line.split()[4] for line in _read("/proc/self/mountinfo").splitlines()}


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _own_address() -> str:
    """Of the interface that leads out, or of none that is there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out, contextlib.suppress(OSError):
        out.connect(("198.51.100.1", 9))
        return str(out.getsockname()[0])
    return "127.0.0.2"


def table(columns: Mapping[str, Mapping[str, str]]) -> str:
    """Attacks by drivers, in Markdown."""
    lines = [f"| attack | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for attack in ATTACKS:
        came = (column.get(attack.name, "") for column in columns.values())
        lines.append(f"| {attack.name} | {' | '.join(came)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table({name: asyncio.run(attacked(driver)) for name, driver in drivers().items()}))
