"""Processes that should be gone, found by a word in their command line."""

from pathlib import Path


def running(word: str) -> list[int]:
    """The pids of all processes that have the word among their arguments; zombies have none."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if word.encode() in arguments:
            found.append(int(path.parent.name))
    return found


def parent_of(pid: int) -> int:
    """The process that started this one, or whoever took its place."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    return int(after_name.split()[1])
