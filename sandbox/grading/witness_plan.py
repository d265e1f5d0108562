"""The plan and the program text of a supervisor and its witness, which runs pytest without a shell.
Pure.

Control tests run beside the reference's; some must fail, which exposes a forged run. Their names
and values are drawn for each grading, so a patch cannot know them.
"""

import hashlib
import inspect
import json
import re
import secrets
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from rollcall.sandbox import process_tree
from rollcall.sandbox.grading import pytest_files, pytest_guard, pytest_witness, supervisor
from rollcall.sandbox.grading.verdict import ERROR, FAILED, PASSED
from rollcall.sandbox.tasks.task_file import Verifier

FUTURE = "from __future__ import annotations\n"
NO_PLUGINS = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"


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


FORMS = {
    "equal": (
        PASSED,
        "def test_{name}():\n    assert [{a}, {b}] == [{a}, {a} + {d}]\n",
    ),
    "unequal": (
        FAILED,
        "def test_{name}():\n    assert {a} == {b}\n",
    ),
    "raises": (
        FAILED,
        "def test_{name}():\n    raise ValueError({a})\n",
    ),
    "case": (
        FAILED,
        "class Test{name}(unittest.TestCase):\n"
        "    def test_{name}(self):\n        self.assertEqual({a}, {b})\n",
    ),
    "case_passes": (
        PASSED,
        "class Test{name}(unittest.TestCase):\n"
        "    def test_{name}(self):\n        self.assertEqual({a} + {d}, {b})\n",
    ),
    "fixture": (
        ERROR,
        "@pytest.fixture\ndef f{name}():\n    raise LookupError({a})\n\n\n"
        "def test_{name}(f{name}):\n    pass\n",
    ),
}
"""The expected outcome and the text of each form of control test."""


@dataclass(frozen=True, slots=True)
class Controls:
    """A file of control tests, and their expected outcomes."""

    path: str
    """The name of their file."""
    text: str
    expected: dict[str, str]
    """The expected outcome by test."""


def controls() -> Controls:
    """Draw new control tests."""
    path = f"test_{_name()}.py"
    texts, expected = ["import unittest\n\nimport pytest\n"], {}
    for form in sorted(FORMS, key=lambda _: secrets.randbits(32)):
        outcome, text = FORMS[form]
        name, a, d = _name(), secrets.randbelow(10_000), 1 + secrets.randbelow(10_000)
        texts.append(text.format(name=name, a=a, b=a + d, d=d))
        where = f"Test{name}::test_{name}" if form.startswith("case") else f"test_{name}"
        expected[f"{path}::{where}"] = outcome
    return Controls(path, "\n\n".join(texts), expected)


def _name() -> str:
    return "".join(secrets.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(8))


@dataclass(frozen=True, slots=True)
class WitnessPlan:
    """One supervised run of pytest."""

    verifier: Verifier
    command: PytestCommand
    workdir: str
    tests: Mapping[str, bytes]
    """The reference's test files, by path below the work directory."""
    named: Collection[str]
    """Files in the names of tests, which a patch cannot change."""
    output_bytes: int
    nonce: str
    token: str

    def together(self, control: Controls) -> bytes:
        """Return the program that runs all tests, and then the control tests."""
        return self._program({control.path: control.text, "controls.ini": "[pytest]\n"}, [])

    def alone(self, tokens: Mapping[str, str]) -> bytes:
        """Return the program that runs some tests, each in its own process with its own token."""
        return self._program({}, list(tokens.items()))

    def _program(self, control: Mapping[str, str], alone: Sequence[tuple[str, str]]) -> bytes:
        argv = [
            *self.command.argv,
            f"--rootdir={self.workdir}",
            "--continue-on-collection-errors",
            "--maxfail=0",
            "--color=no",
        ]
        given = {**self.verifier.env, **self.command.env}
        search = replace(self.command, env=given).search(self.workdir)
        texts = {name: text for name, text in self.tests.items() if name.endswith(".py")}
        plan = {
            "nonce": self.nonce,
            "timeout_s": self.verifier.timeout_sec,
            "output_bytes": self.output_bytes,
            "env": given,
            "program": program(pytest_files, pytest_guard, pytest_witness),
            "controls": control,
            "witness": {
                "token": self.token,
                "cwd": self.workdir,
                "paths": search,
                "plugins": NO_PLUGINS not in given,
                "argv": argv,
                "digests": {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()},
                "closely": self.verifier.fail_to_pass,
                "named": sorted(self.named),
                "alone": alone,
                "controls": [name for name in control if name.endswith(".py")],
            },
        }
        text = program(process_tree, supervisor)
        return f"{text}supervise(json.loads({json.dumps(plan)!r}))\n".encode()


def witness_plan(
    verifier: Verifier,
    command: PytestCommand,
    workdir: str,
    tests: Mapping[str, bytes],
    named: Collection[str],
    output_bytes: int,
) -> WitnessPlan:
    """Make a plan with a new nonce and token."""
    drawn = secrets.token_hex(16), secrets.token_hex(16)
    return WitnessPlan(verifier, command, workdir, tests, named, output_bytes, *drawn)


def program(*modules: object) -> str:
    """Concatenate the sources of modules into one program, for Python 3.7 or newer."""
    texts = [inspect.getsource(module).replace(FUTURE, "") for module in modules]  # type: ignore[arg-type]
    return FUTURE + "\n".join(texts) + "\n"
