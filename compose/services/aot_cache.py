"""A JVM's classes, loaded and linked ahead of time (JEP 514): a service starts in half the CPU.

A cache costs as much as a few starts, so it is made once per machine, beside the starts and not
before one: the first start of a program leaves a mark, the second has a process of its own make
the cache (see aot_training), later ones read it. The law: a start never fails or waits for the
sake of a cache. It holds for one Java runtime and one class path, which name it; a JVM that finds
it unfit goes on without, and one that was altered since, which could end a JVM, is not shown to it.
"""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compose.services.artifacts import mark
from schemas.whole_files import write_whole

KEPT = 3
"""Caches of one service: each virtual environment has a Java runtime, so a cache, of its own."""
ROOM_BYTES = 1 << 30


@dataclass(frozen=True)
class AotCache:
    """The cache of what runs `service` with this Java runtime and this class path."""

    cache_dir: Path
    service: str
    java: Path
    class_path: Sequence[Path]

    @property
    def folder(self) -> Path:
        return self.cache_dir / "aot"

    def file(self, kind: str = "aot") -> Path:
        """`aot` the cache; `mark` what it bore when it was whole; `seen` and `claimed` its past."""
        modules = self.java.parent.parent / "lib" / "modules"
        stats = [(str(path), path.stat()) for path in (modules, *self.class_path)]
        known = json.dumps([(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats])
        return (
            self.folder / f"{self.service}-{hashlib.sha256(known.encode()).hexdigest()[:16]}.{kind}"
        )

    def flags(self) -> list[str]:
        """What the JVM is told: nothing unless the cache is there as it was made."""
        try:
            whole = json.loads(self.file("mark").read_text()) == mark(self.file())
        except (OSError, ValueError):
            return []
        # The JVM warns of each adapter that it compiles anew.
        return [f"-XX:AOTCache={self.file()}", "-Xlog:aot*=error"] if whole else []

    def is_due(self) -> bool:
        """Note one more start. True for one caller ever: whoever is second is to make the cache."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            seen, claimed = self.file("seen"), self.file("claimed")
            if claimed.exists() or shutil.disk_usage(self.folder).free < ROOM_BYTES:
                return False
            if not seen.exists():
                seen.touch()
                return False
            seen.rename(claimed)  # one process can
        except OSError:  # no Java runtime, a cache directory of somebody else: go without
            return False
        return True

    def put_off(self) -> None:
        """It was not made after all: whoever starts next is to."""
        with contextlib.suppress(OSError):
            self.file("claimed").rename(self.file("seen"))

    def keep(self, made: Path) -> None:
        """Take a file that a JVM wrote whole as the cache; older ones than the last few go."""
        made.rename(self.file())
        write_whole(self.file("mark"), json.dumps(mark(self.file())))
        caches = self.folder.glob(f"{self.service}-*.aot")
        for old in sorted(caches, key=lambda path: path.stat().st_mtime_ns)[:-KEPT]:
            for rest in self.folder.glob(f"{old.stem}.*"):
                rest.unlink(missing_ok=True)
