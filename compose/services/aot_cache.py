"""Ahead-of-time class caches of JVMs (JEP 514): a service starts with half the CPU time.

Making a cache costs as much as a few starts, so it is made once per machine, parallel to a start:
the first start of a program leaves a mark, the second has another process make the cache (see
aot_training), later ones read it. Invariant: a start never fails or waits because of a cache. A
cache is valid for one Java runtime and one class path, which form its name; a JVM that finds it
unfit runs without it. A cache that was altered could crash a JVM, so it is not given to one.
"""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rollcall.compose.services.artifacts import mark
from rollcall.schemas.atomic_files import write_atomically

KEPT = 3
"""The most caches of a service; each virtual environment's Java runtime has its own."""
ROOM_BYTES = 1 << 30


@dataclass(frozen=True)
class AotCache:
    """The cache of `service` under this Java runtime and this class path."""

    cache_dir: Path
    service: str
    java: Path
    class_path: Sequence[Path]

    @property
    def folder(self) -> Path:
        return self.cache_dir / "aot"

    def file(self, kind: str = "aot") -> Path:
        """Return a file: `aot` the cache, `mark` its mark, `seen` and `claimed` its progress."""
        modules = self.java.parent.parent / "lib" / "modules"
        stats = [(str(path), path.stat()) for path in (modules, *self.class_path)]
        known = json.dumps([(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats])
        return (
            self.folder / f"{self.service}-{hashlib.sha256(known.encode()).hexdigest()[:16]}.{kind}"
        )

    def flags(self) -> list[str]:
        """Return the JVM's flags: none unless the cache exists and is unaltered."""
        try:
            whole = json.loads(self.file("mark").read_text()) == mark(self.file())
        except (OSError, ValueError):
            return []
        # Otherwise the JVM warns about each adapter that it recompiles.
        return [f"-XX:AOTCache={self.file()}", "-Xlog:aot*=error"] if whole else []

    def is_due(self) -> bool:
        """Record a start. Return True for exactly one caller, the second, which makes the cache."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            seen, claimed = self.file("seen"), self.file("claimed")
            if claimed.exists() or shutil.disk_usage(self.folder).free < ROOM_BYTES:
                return False
            if not seen.exists():
                seen.touch()
                return False
            seen.rename(claimed)  # only one process succeeds
        except OSError:  # no Java runtime, or a cache directory of another user: go without
            return False
        return True

    def put_off(self) -> None:
        """Mark the cache as not made, so that the next start makes it."""
        with contextlib.suppress(OSError):
            self.file("claimed").rename(self.file("seen"))

    def keep(self, made: Path) -> None:
        """Use a complete file of a JVM as the cache; remove all but the newest few."""
        made.rename(self.file())
        write_atomically(self.file("mark"), json.dumps(mark(self.file())))
        caches = self.folder.glob(f"{self.service}-*.aot")
        for old in sorted(caches, key=lambda path: path.stat().st_mtime_ns)[:-KEPT]:
            for rest in self.folder.glob(f"{old.stem}.*"):
                rest.unlink(missing_ok=True)
