"""A spool for content that may become an object, with little of it in memory."""

import tempfile

from rollcall.schemas.errors import WorkFailed

IN_MEMORY_BYTES = 1 << 20
"""The size above which content is in an unnamed file, which ends with its worker."""


class ArtefactSpool:
    """Bytes in order of arrival, up to `most_bytes`; bytes beyond that are only counted."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._file = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115 (see close)
        self.size = 0
        """The size of all that was written."""

    @property
    def cut(self) -> bool:
        """True if the end is missing."""
        return self.size > self._most_bytes

    def write(self, chunk: bytes) -> None:
        """Append a chunk. Raises WorkFailed(`no_room`) if the disk is full."""
        room = max(0, self._most_bytes - self.size)
        self.size += len(chunk)
        try:
            self._file.write(chunk[:room])
        except OSError as error:
            msg = f"there is no room in {tempfile.gettempdir()} for what a box says: {error}"
            raise WorkFailed("no_room", msg, retriable=True) from error

    def read(self) -> bytes:
        """Return all that was kept."""
        self._file.seek(0)
        return self._file.read()

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._file.close()
