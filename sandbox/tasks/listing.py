"""Lists of tasks in a folder, with a summary of each."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rollcall.sandbox.tasks.harbor import TASK_FILE, HarborTask, examine, read_task
from rollcall.schemas.errors import Refused


@dataclass(frozen=True, slots=True)
class CheckedTask:
    """The summary of a task, or its faults."""

    directory: str
    digest: str
    parser: str
    fail_to_pass: int
    pass_to_pass: int
    proven: bool | None = None
    """True if it was proven by grading when it was made; None without `metadata.proven`."""
    faults: tuple[str, ...] = ()


def task_directories(paths: Iterable[Path]) -> list[Path]:
    """Return the paths that are tasks, and the tasks in those that are folders, sorted by name.

    Raises Refused for a path that is not a directory.
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            msg = f"{str(path)!r} is no directory; a task is one that holds {TASK_FILE}"
            raise Refused(msg)
        inner = sorted(each for each in path.iterdir() if (each / TASK_FILE).is_file())
        found += inner if inner and not (path / TASK_FILE).is_file() else [path]
    return found


def checked_tasks(paths: Iterable[Path]) -> list[CheckedTask]:
    """Check all tasks at these paths. Raises Refused for a path that is not a directory."""
    return [_checked(directory) for directory in task_directories(paths)]


def read_tasks(path: Path) -> list[HarborTask]:
    """Read the tasks of a folder, or a single task. Raises Refused, also for an invalid task."""
    return [read_task(directory) for directory in task_directories([path])]


def _checked(directory: Path) -> CheckedTask:
    task, faults = examine(directory)
    if task is None:
        return CheckedTask(str(directory), "", "", 0, 0, None, tuple(map(str, faults)))
    verifier = task.file.verifier
    tests = len(verifier.fail_to_pass), len(verifier.pass_to_pass)
    proven = task.file.metadata.get("proven")
    proven = proven if isinstance(proven, bool) else None
    return CheckedTask(str(directory), task.digest, verifier.parser, *tests, proven)
