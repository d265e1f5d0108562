"""The files of exported tables, as a read-only file system for DuckDB.

It is the only one that DuckDB has, since its own file systems are disabled. So no statement can
write, remove, or read anything but the tables.
"""

import errno
import io
import os
import stat
from collections.abc import Sequence
from glob import glob
from pathlib import Path
from typing import Any

from fsspec import AbstractFileSystem

SCHEME = "tables"


class TableFile(io.RawIOBase):
    """One file; DuckDB drops it without closing it, which closes it as well."""

    _descriptor = -1
    """Stays -1 if the file could not be opened."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._size_bytes = os.fstat(self._descriptor).st_size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        begins = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size_bytes}
        self._at = max(0, begins[whence] + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        found = os.preadv(self._descriptor, [buffer], self._at)
        self._at += found
        return found

    def close(self) -> None:
        if not self.closed:
            super().close()
            if self._descriptor >= 0:
                os.close(self._descriptor)


class TableFiles(AbstractFileSystem):  # type: ignore[misc]
    """Serves `tables://PATH` for the regular files below some directories, for reading only."""

    protocol = SCHEME
    cachable = False

    def __init__(self, directories: Sequence[Path], **options: Any) -> None:
        super().__init__(**options)
        self.roots = [directory.resolve() for directory in directories]

    def _open(self, path: str, mode: str = "rb", **_: Any) -> TableFile:
        if mode != "rb":
            raise PermissionError(errno.EPERM, "the tables are only read", path)
        return TableFile(self._real(path))

    def glob(self, path: str, **_: Any) -> list[str]:
        return sorted(glob(self._strip_protocol(path)))

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        about = self._real(path).stat()
        return {"name": path, "type": "file", "size": about.st_size, "mtime": about.st_mtime}

    def exists(self, path: str, **_: Any) -> bool:
        try:
            self._real(path)
        except OSError:
            return False
        return True

    def modified(self, path: str) -> Any:
        from datetime import UTC, datetime

        return datetime.fromtimestamp(self.info(path)["mtime"], UTC)

    def _real(self, path: str) -> Path:
        """Return the path of a file, with links resolved. Raises OSError for other files."""
        real = Path(os.path.realpath(self._strip_protocol(path)))
        if not any(real.is_relative_to(root) for root in self.roots):
            raise PermissionError(errno.EPERM, "no file of the tables", path)
        if not stat.S_ISREG(real.stat().st_mode):
            raise PermissionError(errno.EPERM, "no file of the tables", path)
        return real
