"""Several tasks at once: those that lie in a folder, and what is to be said of each."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sandbox.tasks.harbor import TASK_FILE, HarborTask, examine, read_task
from schemas.errors import Refused


@dataclass(frozen=True, slots=True)
class CheckedTask:
    """A task, or what is wrong with it."""

    directory: str
    digest: str
    parser: str
    fail_to_pass: int
    pass_to_pass: int
    proven: bool | None = None
    """Whether the judge was asked when it was made; None where `metadata.proven` does not say."""
    faults: tuple[str, ...] = ()


def task_directories(paths: Iterable[Path]) -> list[Path]:
    """The paths that are tasks, and for each that is a folder of tasks those in it, by name.

    Raises Refused for a path where there is nothing.
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
    """Raises Refused for a path where there is nothing."""
    return [_checked(directory) for directory in task_directories(paths)]


def read_tasks(path: Path) -> list[HarborTask]:
    """The tasks of a folder, or the one that it is; raises Refused, also where one is bad."""
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
