"""What may become an object, while it is still being written: little of it is held in memory."""

import tempfile

from schemas.errors import WorkFailed

IN_MEMORY_BYTES = 1 << 20
"""What is longer lies in a file without a name, which ends with its worker."""


class ArtefactSpool:
    """Bytes in the order in which they come; of what is above the most only the size is kept."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._file = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115 (see close)
        self.size = 0
        """Of all that was written."""

    @property
    def cut(self) -> bool:
        """Whether something is missing at the end."""
        return self.size > self._most_bytes

    def write(self, chunk: bytes) -> None:
        """Raises WorkFailed(`no_room`) where this host has no room for it."""
        room = max(0, self._most_bytes - self.size)
        self.size += len(chunk)
        try:
            self._file.write(chunk[:room])
        except OSError as error:
            msg = f"there is no room in {tempfile.gettempdir()} for what a box says: {error}"
            raise WorkFailed("no_room", msg, retriable=True) from error

    def read(self) -> bytes:
        """All that was kept."""
        self._file.seek(0)
        return self._file.read()

    def close(self) -> None:
        """May be called twice."""
        self._file.close()
