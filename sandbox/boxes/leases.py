"""Leases on boxes: one file for each, renewed periodically by the worker that has the box.

    <directory>/<box id>    <seconds since the host booted> <boot id> <driver> <owner>

A lease that was not renewed for `lapse_s` has lapsed, and the reaper removes its box. Times are
those of a monotonic clock: a change of the wall clock ends no lease, and after a boot all have
lapsed. A box's id begins with a digest of the directory: so a reaper knows which boxes belong to
its leases, and ignores all others. A thread of its own renews them, so none lapses while the event
loop of a worker (a room) is blocked.
"""

import hashlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from rollcall.schemas.errors import FailureCode, WorkFailed
from rollcall.schemas.private_folders import make_private

TAG_CHARS = 8
MOST_BYTES = 1024

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Intervals of renewal, lapse and reaping, in seconds."""

    touch_s: float = 5.0
    lapse_s: float = 30.0
    reap_s: float = 10.0


def booted_s() -> float:
    """Return the seconds since this host booted, including those suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def boot_id() -> str:
    """Return the id of this boot, the same for all processes of the host."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return "unknown"


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease, as it was read from its file."""

    ident: str
    driver: str
    owner: str
    age_s: float
    """Seconds since its renewal; infinite after a boot."""


class Leases:
    """The leases of one worker, and a reader of all leases in its directory."""

    def __init__(
        self,
        directory: Path,
        owner: str,
        times: LeaseTimes | None = None,
        clock: Callable[[], float] = booted_s,
    ) -> None:
        self.directory = directory.absolute()
        self.owner = "-".join(owner.split()) or "-"
        self.times = times or LeaseTimes()
        self.clock = clock
        digest = hashlib.blake2b(os.fsencode(self.directory), digest_size=TAG_CHARS // 2)
        self.tag = digest.hexdigest()
        self.held: dict[str, str] = {}
        """The driver of each box of this worker, by the box's id."""
        self._boot_id = boot_id()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._said = False

    def draw(self) -> str:
        """Draw the id of a new box."""
        return self.tag + secrets.token_hex(8)

    def take(self, ident: str, driver: str) -> None:
        """Write a lease on a box that is about to be made.

        Raises WorkFailed(`box_unavailable`) if it cannot be written: the box would be reaped.
        """
        try:
            self._write(ident, driver)
        except OSError as error:
            msg = f"leases of boxes cannot be written in {self.directory}: {error.strerror}"
            raise WorkFailed(FailureCode.BOX_UNAVAILABLE, msg, retriable=True) from error
        with self._lock:
            self.held[ident] = driver
            if self._thread is None:
                self._thread = threading.Thread(target=self._live, name="leases", daemon=True)
                self._thread.start()

    def give(self, ident: str) -> bool:
        """Remove the lease of a box that is gone; True for the one caller that removed the file."""
        with self._lock:
            self.held.pop(ident, None)
            return self._unlink(ident)

    def let_lapse(self, ident: str) -> None:
        """Stop renewing a lease, so that the reaper removes its box."""
        with self._lock:
            self.held.pop(ident, None)

    def touch(self) -> None:
        """Renew all leases; a directory that was removed is made again."""
        with self._lock:
            for ident, driver in self.held.items():
                try:
                    self._write(ident, driver)
                except OSError as error:
                    if not self._said:
                        log.error(
                            "leases_not_renewed", directory=str(self.directory), error=str(error)
                        )
                    self._said = True
                    return
        self._said = False

    def close(self) -> None:
        """Stop renewing; leases that are still held will lapse. May be called twice."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _live(self) -> None:
        while not self._over.wait(self.times.touch_s):
            self.touch()

    def _write(self, ident: str, driver: str) -> None:
        """Overwrite a lease in place: its line keeps its length, so no reader sees half of it."""
        line = f"{self.clock():020.3f} {self._boot_id} {driver} {self.owner}\n"
        path, how = self.directory / ident, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        try:
            opened = os.open(path, how, 0o644)
        except FileNotFoundError:
            make_private(self.directory)
            opened = os.open(path, how, 0o644)
        try:
            os.pwrite(opened, line.encode()[:MOST_BYTES], 0)
        finally:
            os.close(opened)

    def _unlink(self, ident: str) -> bool:
        try:
            os.unlink(self.directory / ident)
        except OSError:
            return False
        return True

    def is_of_here(self, ident: str) -> bool:
        """Return True if a box's lease, if it has one, is in this directory."""
        return ident.startswith(self.tag)

    def is_live(self, lease: Lease | None) -> bool:
        return lease is not None and lease.age_s <= self.times.lapse_s

    def read(self, ident: str) -> Lease | None:
        """Read a lease; None if there is none, or it cannot be parsed."""
        try:
            with (self.directory / ident).open("rb") as file:
                told, boot, driver, owner = file.read(MOST_BYTES).decode().split()
            age_s = self.clock() - float(told)
        except (OSError, ValueError):
            return None
        same_boot = boot == self._boot_id
        return Lease(ident, driver, owner, max(0.0, age_s) if same_boot else float("inf"))

    def all(self) -> Iterator[Lease]:
        """Yield every lease of the directory, of all owners; none if there is no directory."""
        with suppress(OSError):
            for name in sorted(os.listdir(self.directory)):
                lease = self.read(name)
                if lease is not None:
                    yield lease
