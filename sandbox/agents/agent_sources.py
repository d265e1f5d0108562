"""The user's own files that a fork server has imported, as they were then.

A user edits them while workers run, and the next rollout is to be played by what stands there now.
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path


def function_file(function: str) -> Path:
    """Where the function `FILE.py:NAME` is, whatever directory is left meanwhile."""
    return Path(function.rpartition(":")[0]).absolute()


def content_digest(file: Path | str) -> str:
    """Names what a file holds; empty where it cannot be read."""
    try:
        return blake2b(Path(file).read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return ""


class SourceFiles:
    """Files and what they held."""

    def __init__(self, files: Iterable[str] = ()) -> None:
        self._digests: Mapping[str, str] = {file: content_digest(file) for file in files}

    def edited(self) -> bool:
        """Whether any of them holds something else now, or is gone."""
        return any(content_digest(file) != was for file, was in self._digests.items())
