"""The files of an agent's modules that its box shows.

It is imported by the fork server, and uses the standard library alone. An interpreter is shown with
its installed packages. Of other directories, such as an editable install or the folder of a user's
file, only modules are shown: checkouts, tasks or state may lie beside them. The modules are linked
into a folder of this worker, which is mounted in the box at the original path.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from importlib.machinery import all_suffixes
from pathlib import Path

PARTS = ("bin", "etc", "include", "lib", "lib32", "lib64", "libexec", "share", "ssl", "pyvenv.cfg")
"""The parts of an interpreter's folder that are shown: it may also be the folder of a project."""
LEFT_OUT = frozenset(("tests", "solution", "__pycache__"))
TASK_FILE = "task.toml"
OURS = str(Path(__file__).parents[1])
"""The folder of this package, whose modules a fork already has in memory."""


def shown_imports(linked: str) -> dict[str, str]:
    """Return this host's directories by their path in a box; `linked` is a new folder for links."""
    prefixes = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
    parts = {os.path.join(os.path.abspath(prefix), part) for prefix in prefixes for part in PARTS}
    installed = {part for part in parts if os.path.exists(part)}
    roots = set()
    for root, file in _modules([*installed, OURS, os.path.abspath(linked)]):
        roots.add(root)
        _link(file, linked + file)
    outer = {each for each in roots if not _below(each, roots - {each})}
    for part in installed:
        if _below(part, outer):
            _mount_point(part, linked + part)
    # Give the folders the permissions of the originals: they were made for this user alone.
    for folder, _, _ in os.walk(linked, topdown=False):
        if os.path.isdir(real := folder[len(linked) :]):
            os.chmod(folder, 0o700 | os.stat(real).st_mode & 0o777)
    return {place: place for place in installed} | {place: linked + place for place in outer}


def _modules(elsewhere: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the import root and the file of each module that is not below `elsewhere`.

    Modules beside imported ones are included: they may be imported later.
    """
    for place in sys.path:
        root = os.path.abspath(place)
        if place and os.path.isdir(root) and not _below(root, elsewhere):
            yield from ((root, file) for file in _files(root))
    for name, module in tuple(sys.modules.items()):
        if "." in name:
            continue
        folders = [os.path.abspath(each) for each in _strings(getattr(module, "__path__", ()))]
        for folder in folders:
            if os.path.basename(folder) not in LEFT_OUT and not _below(folder, elsewhere):
                yield from ((os.path.dirname(folder), file) for file in _files_below(folder))
        file = getattr(module, "__file__", None)
        if not folders and isinstance(file, str) and os.path.isfile(file):
            file = os.path.abspath(file)
            if not _below(file, elsewhere):
                yield os.path.dirname(file), file


def _files_below(package: str) -> Iterator[str]:
    for folder, folders, files in os.walk(
        package, followlinks=True
    ):  # our rooms are links in a checkout
        folders[:] = [each for each in folders if each not in LEFT_OUT and not each.startswith(".")]
        if TASK_FILE in files:
            folders.clear()
        else:
            yield from _files(folder)


def _files(folder: str) -> Iterator[str]:
    suffixes = tuple(all_suffixes())
    for name in os.listdir(folder):
        file = os.path.join(folder, name)
        if name.endswith(suffixes) and os.path.isfile(file):
            yield file


def _link(file: str, place: str) -> None:
    """Hard-link a file, or copy it if it cannot be linked."""
    os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
    if os.path.exists(place):
        return
    try:
        os.link(os.path.realpath(file), place)
    except OSError:
        shutil.copy2(file, place)


def _mount_point(part: str, place: str) -> None:
    """Make a mount point now, since none can be made in a read-only mount."""
    os.makedirs(place if os.path.isdir(part) else os.path.dirname(place), exist_ok=True)
    if not os.path.isdir(part):
        Path(place).touch()


def _below(place: str, others: "list[str] | set[str]") -> bool:
    """Return True if a path is one of the others, or lies in one."""
    return any(f"{place}/".startswith(f"{other.rstrip('/')}/") for other in others)


def _strings(found: object) -> list[str]:
    """Return the strings of a module's attribute, which may have any type."""
    try:
        return [each for each in found if isinstance(each, str)]  # type: ignore[attr-defined]
    except TypeError:
        return []
