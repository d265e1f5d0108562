"""The plan and the program text of a supervisor and its witness. Pure."""

import hashlib
import inspect
import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from rollcall.sandbox import process_tree
from rollcall.sandbox.grading import pytest_files, pytest_guard, pytest_witness, supervisor
from rollcall.sandbox.grading.controls import Controls
from rollcall.sandbox.grading.pytest_command import PytestCommand
from rollcall.sandbox.tasks.verifier import Verifier

FUTURE = "from __future__ import annotations\n"
NO_PLUGINS = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"


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
            *self.command.argv, f"--rootdir={self.workdir}", "--continue-on-collection-errors",
            "--maxfail=0", "--color=no",
        ]  # fmt: skip
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
