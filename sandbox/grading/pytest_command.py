"""A parser of pytest commands, for a witness that runs pytest without a shell. Pure."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SHELL = set("$`;&|<>()*?~\n\\#")
"""Characters that need a shell to interpret a command."""
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
STOPS = re.compile(r"-x|--exitfirst|--maxfail=.*|--sw|--stepwise|--lf|--ff|--nf")


@dataclass(frozen=True, slots=True)
class PytestCommand:
    """A parsed command that runs pytest."""

    interpreter: str
    argv: tuple[str, ...]
    """Options and paths as written, without options that end a run early."""
    env: Mapping[str, str]
    finds_itself: bool
    """True if the work directory is on the module path, as with `python -m`."""

    def search(self, directory: str) -> list[str]:
        """Return the absolute paths that are searched for modules of the tree."""
        named = [path for path in self.env.get("PYTHONPATH", "").split(":") if path]
        paths = [_joined(directory, path) for path in named]
        if self.finds_itself and directory not in paths:
            paths.append(directory)
        return paths


def pytest_command(command: str) -> PytestCommand | None:
    """Parse a command; None if it does more than run pytest, or needs a shell."""
    if SHELL & set(command):
        return None
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    env = {}
    while words and ASSIGNMENT.match(words[0]):
        name, _, env[name] = words.pop(0).partition("=")
    if words[1:3] == ["-m", "pytest"] and re.search(r"(^|/)python[\d.]*$", words[0]):
        return PytestCommand(words[0], _going_on(words[3:]), env, finds_itself=True)
    if words[:1] in (["pytest"], ["py.test"]):
        return PytestCommand("python3", _going_on(words[1:]), env, finds_itself=False)
    return None


def _going_on(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for word in words if not STOPS.fullmatch(word))


def _joined(directory: str, path: str) -> str:
    if path.startswith("/"):
        return path
    return directory if path == "." else f"{directory}/{path.removeprefix('./')}"
