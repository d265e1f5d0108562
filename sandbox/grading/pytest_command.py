"""A command that runs pytest, taken apart for a witness that runs it without a shell. Pure."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SHELL = set("$`;&|<>()*?~\n\\#")
"""Where one of these stands in a command, a shell is needed to say what it means."""
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
STOPS = re.compile(r"-x|--exitfirst|--maxfail=.*|--sw|--stepwise|--lf|--ff|--nf")


@dataclass(frozen=True, slots=True)
class PytestCommand:
    """What a command asks of pytest."""

    interpreter: str
    argv: tuple[str, ...]
    """Options and paths as they were written, without those that end a run early."""
    env: Mapping[str, str]
    finds_itself: bool
    """Whether the work directory is searched for modules, as `python -m` does."""

    def search(self, directory: str) -> list[str]:
        """Where modules of the tree are found, absolute."""
        named = [path for path in self.env.get("PYTHONPATH", "").split(":") if path]
        paths = [_joined(directory, path) for path in named]
        if self.finds_itself and directory not in paths:
            paths.append(directory)
        return paths


def pytest_command(command: str) -> PytestCommand | None:
    """None for a command that does more than run pytest, or that only a shell can read."""
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
