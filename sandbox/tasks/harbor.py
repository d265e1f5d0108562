"""A task: a directory in Harbor's format, identified by the digest of its content.

    task.toml         how it is run and graded (`rollcall.sandbox.tasks.task_file`)
    instruction.md    the instruction for the agent
    environment/      testbed/: the initial files; a Dockerfile, if an image is built
    tests/            testbed/: the files that are unpacked over them for grading
    solution/         gold.patch: the patch that resolves it; may be missing

The digest covers names, contents, links and executable bits, but not times, owners, or the
directory's path. A task that is requested by digest is either exactly that one or refused.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rollcall.sandbox.boxes.box import ImageBuild
from rollcall.sandbox.tasks.task_file import TaskFile, parsed
from rollcall.schemas.errors import Refused
from rollcall.schemas.untrusted_text import clean_text

TASK_FILE, INSTRUCTION = "task.toml", "instruction.md"
TESTBED, TEST_FILES, GOLD = "environment/testbed", "tests/testbed", "solution/gold.patch"
DOCKERFILE = "environment/Dockerfile"
PARTS = ("environment", "tests", "solution")
MOST_FILES = 20_000
MOST_BYTES = 256 << 20
FILE_BYTES = 64 << 20
TEXT_BYTES = 1 << 20
"""The most bytes of `task.toml` and of `instruction.md`."""
NAME_BYTES, PATH_BYTES = 255, 1024
MOST_SAID = 20


@dataclass(frozen=True, slots=True)
class HarborTask:
    """A valid task directory, as it was read."""

    directory: Path
    digest: str
    file: TaskFile
    instruction: str
    built_of: str = ""
    """The digest of `environment/`, if its Dockerfile makes the task's image; else empty."""

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def testbed(self) -> Path | None:
        """The directory of initial files; None if the image has them."""
        return _if_there(self.directory / TESTBED)

    @property
    def image(self) -> str:
        """The image of its box; empty for the host's programs."""
        if self.built_of:
            return f"rollcall/task:{self.built_of[:16]}"
        return self.file.environment.docker_image

    def placed(self, image: str) -> str:
        """Return the path of the task's files in this image; empty if they are copied into boxes.

        An image has them if the task has no testbed, or if `environment.workdir` names their path
        in the task's own image: then packages that the image installed from there are edited.
        """
        environment = self.file.environment
        says = "workdir" in environment.model_fields_set and image == self.image
        return environment.workdir if image and (says or not self.testbed) else ""

    @property
    def build(self) -> ImageBuild | None:
        """The build of its image; None if it has no Dockerfile."""
        if not self.built_of:
            return None
        timeout_s = self.file.environment.build_timeout_sec
        return ImageBuild(str(self.directory / "environment"), timeout_s)

    @property
    def test_files(self) -> Path:
        """The directory of files that are unpacked over the work directory for grading."""
        return self.directory / TEST_FILES

    @property
    def gold(self) -> bytes | None:
        """The patch that resolves it; None if none is known."""
        path = _if_there(self.directory / GOLD)
        return path.read_bytes() if path else None


@dataclass(frozen=True, slots=True)
class TaskFault:
    """A missing or invalid part of a task."""

    path: str
    """Its path below the task's directory."""
    wrong: str

    def __str__(self) -> str:
        return f"{self.path}: {self.wrong}"


def read_task(directory: Path) -> HarborTask:
    """Read a task directory. Raises Refused, with all its faults."""
    task, faults = examine(directory)
    if task is None:
        more = f"; and {len(faults) - MOST_SAID:,} more" if len(faults) > MOST_SAID else ""
        said = "; ".join(map(str, faults[:MOST_SAID]))
        msg = f"task {str(directory)!r} cannot be used: {said}{more}"
        raise Refused(clean_text(msg))
    return task


def examine(directory: Path) -> tuple[HarborTask | None, list[TaskFault]]:
    """Read a task directory; return the task, or None and all its faults."""
    if not directory.is_dir():
        return None, [TaskFault(".", "there is no such directory")]
    entries, faults = _walk(directory)
    if faults:
        return None, faults
    file, instruction = _text(directory, TASK_FILE, faults), _text(directory, INSTRUCTION, faults)
    settings, wrong = parsed(file) if file else (None, [])
    faults += [TaskFault(TASK_FILE, each) for each in wrong]
    faults += _missing(directory, {entry.path for entry in entries}, settings)
    if faults or settings is None:
        return None, faults
    try:
        digest = _digest(directory, entries)
        built_of = _built_of(directory, entries, settings)
    except OSError as error:
        return None, [TaskFault(".", f"cannot be read: {error}")]
    return HarborTask(directory.absolute(), digest, settings, instruction, built_of), []


@dataclass(frozen=True, slots=True)
class _TaskFile:
    path: str
    mode: int
    size: int


def _walk(directory: Path) -> tuple[list[_TaskFile], list[TaskFault]]:
    """Return all entries below a directory, sorted by the bytes of their paths, and faults."""
    entries: list[_TaskFile] = []
    faults: list[TaskFault] = []
    try:
        for entry in _entries(directory):
            wrong = _wrong(directory, entry)
            if wrong:
                faults.append(TaskFault(clean_text(repr(entry.path)[1:-1]), wrong))
            entries.append(entry)
            if len(entries) > MOST_FILES:
                return [], [TaskFault(".", f"holds more than {MOST_FILES:,} files")]
    except OSError as error:
        return [], [TaskFault(clean_text(str(error.filename)), f"cannot be read: {error.strerror}")]
    size = sum(entry.size for entry in entries)
    if size > MOST_BYTES:
        faults.append(TaskFault(".", f"holds {size:,} bytes; a box takes {MOST_BYTES:,}"))
    entries.sort(key=lambda entry: os.fsencode(entry.path))
    return entries, faults


def _entries(directory: Path) -> Iterator[_TaskFile]:
    waiting = [(os.fspath(directory), "")]
    while waiting:
        place, above = waiting.pop()
        with os.scandir(place) as found:
            for each in found:
                seen = each.stat(follow_symlinks=False)
                path = f"{above}{each.name}"
                if stat.S_ISDIR(seen.st_mode):
                    waiting.append((each.path, f"{path}/"))
                    yield _TaskFile(path, seen.st_mode, 0)
                else:
                    yield _TaskFile(path, seen.st_mode, seen.st_size)


def _wrong(directory: Path, entry: _TaskFile) -> str:
    """Return the fault of one file, folder or link; empty if it has none."""
    name = PurePosixPath(entry.path).name
    try:
        size, longest = len(entry.path.encode()), len(name.encode())
    except UnicodeEncodeError:
        return "has a name that is no UTF-8"
    if not name.isprintable() or longest > NAME_BYTES or size > PATH_BYTES:
        return f"has a name with unprintable characters, or one above {NAME_BYTES} bytes"
    if name == ".git":
        return "is a repository's own; a box makes one, and this would tell what comes later"
    if stat.S_ISLNK(entry.mode):
        return _leads_out(directory, entry.path)
    if not (stat.S_ISREG(entry.mode) or stat.S_ISDIR(entry.mode)):
        return "is neither a file, a folder nor a link"
    if entry.size > FILE_BYTES:
        return f"has {entry.size:,} bytes; a file may have {FILE_BYTES:,}"
    if entry.mode & (stat.S_ISUID | stat.S_ISGID) and stat.S_ISREG(entry.mode):
        return "runs as its owner whoever starts it (setuid); take that bit away"
    return ""


def _leads_out(directory: Path, path: str) -> str:
    """Return the fault of a link: its target must be in the part that is copied with it."""
    target = os.readlink(directory / path)
    root = next((each for each in (TESTBED, TEST_FILES) if path.startswith(f"{each}/")), "")
    root = root or path.partition("/")[0]
    place = os.path.normpath(os.path.join(os.path.dirname(path), target))
    if path in (TASK_FILE, INSTRUCTION, *PARTS, TESTBED, TEST_FILES):
        return "is a link; it must be there itself"
    if os.path.isabs(target) or not f"{place}/".startswith(f"{root}/"):
        return f"is a link to {clean_text(target, 200)!r}, which leads out of {root}/"
    return ""


def _text(directory: Path, name: str, faults: list[TaskFault]) -> str:
    path = directory / name
    if not path.is_file():
        faults.append(TaskFault(name, "is missing"))
        return ""
    if path.stat().st_size > TEXT_BYTES:
        faults.append(TaskFault(name, f"has more than {TEXT_BYTES:,} bytes"))
        return ""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        faults.append(TaskFault(name, f"cannot be read: {error}"))
        return ""
    if not text.strip():
        faults.append(TaskFault(name, "is empty"))
    return text


def _missing(directory: Path, paths: set[str], file: TaskFile | None) -> list[TaskFault]:
    """Return faults for required parts that are missing."""
    faults = []
    if not any(path.startswith(f"{TEST_FILES}/") for path in paths):
        faults.append(
            TaskFault(f"{TEST_FILES}/", "is missing or empty: there is nothing to judge by")
        )
    image = file.environment.docker_image if file else ""
    if TESTBED not in paths and DOCKERFILE not in paths and not image and file:
        wrong = "is missing, and so are a Dockerfile and environment.docker_image in task.toml"
        faults.append(TaskFault(f"{TESTBED}/", wrong))
    if "solution" in paths and GOLD not in paths and "solution/solve.sh" not in paths:
        faults.append(
            TaskFault("solution/", f"holds neither {PurePosixPath(GOLD).name} nor solve.sh")
        )
    return faults


def _digest(directory: Path, entries: list[_TaskFile]) -> str:
    """Return the SHA-256 of one line per entry, which encodes names by length: no ambiguity."""
    whole = hashlib.sha256(b"rollcall task 1\n")
    for entry in entries:
        name, place = os.fsencode(entry.path), directory / entry.path
        if stat.S_ISDIR(entry.mode):
            kind, content = b"directory", b""
        elif stat.S_ISLNK(entry.mode):
            kind, content = b"link", os.fsencode(os.readlink(place))
        else:
            kind = b"program" if entry.mode & stat.S_IXUSR else b"file"
            content = place.read_bytes()
        whole.update(b"%s %d:%s %s\n" % (kind, len(name), name, _sha256(content)))
    return whole.hexdigest()


def _built_of(directory: Path, entries: list[_TaskFile], file: TaskFile) -> str:
    """Return the digest of `environment/` alone, so that equal environments share an image."""
    if file.environment.docker_image or DOCKERFILE not in {entry.path for entry in entries}:
        return ""
    return _digest(directory, [each for each in entries if each.path.startswith("environment/")])


def _sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _if_there(path: Path) -> Path | None:
    return path if path.exists() else None
