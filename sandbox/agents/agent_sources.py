"""The digests of user files that a fork server has imported, to detect later edits.

A user may edit the files while workers run, and the next rollout must use the current ones.
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path


def function_file(function: str) -> Path:
    """Return the absolute path of the file in `FILE.py:NAME`."""
    return Path(function.rpartition(":")[0]).absolute()


def content_digest(file: Path | str) -> str:
    """Return the digest of a file's content; empty if it cannot be read."""
    try:
        return blake2b(Path(file).read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return ""


class SourceFiles:
    """Files, and the digests of their content at one time."""

    def __init__(self, files: Iterable[str] = ()) -> None:
        self._digests: Mapping[str, str] = {file: content_digest(file) for file in files}

    def edited(self) -> bool:
        """Return True if the content of any file has changed, or a file is gone."""
        return any(content_digest(file) != was for file, was in self._digests.items())
