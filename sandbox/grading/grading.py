"""A patch is judged in a box where nobody has been: applied, then tested by what was put in after.

What the patch could have written is not trusted. Its changes to tests, and to what tells a test
runner how to run (`GUARDED`), are left out; the reference's tests replace whatever is in their
place. pytest is run by a witness under a supervisor (`pytest_witness`, `supervisor`), any other
command by a shell that frames its output with a nonce; a run that contradicts itself earns nothing.
A command that cannot be taken apart (`pytest_command`), or another runner, prints its own results:
there code under test that prints what its runner would print is believed.

A fault of the box is no verdict: `true` is run in it before the patch is blamed. A patch whose code
takes all memory that the box may have is no fault of it (`sandbox.boxes.probe`). Errors are
WorkFailed, those that may be retried among them.
"""

import asyncio
import inspect
import json
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from posixpath import dirname, join, normpath

from sandbox import process_tree
from sandbox.boxes import tar_streams
from sandbox.boxes.box import BOX_SPOILT, VARIABLES, Box, Ran, Spec
from sandbox.boxes.frame import Frame
from sandbox.boxes.probe import probe
from sandbox.grading import pytest_witness, supervisor
from sandbox.grading.controls import Controls, controls
from sandbox.grading.parsers import parse
from sandbox.grading.patches import complaint, renamed_away
from sandbox.grading.pytest_command import PytestCommand, pytest_command
from sandbox.grading.reference import Reference
from sandbox.grading.verdict import TestLog, Verdict, verdict
from sandbox.grading.witnessed import seen_in, witnessed
from schemas.errors import WorkFailed

OpenBox = Callable[[Spec], Awaitable[Box]]
GUARDED = (
    "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini",
    "setup.cfg", "pyproject.toml", "sitecustomize.py", "usercustomize.py",
)  # fmt: skip
"""Files that tell Python or pytest how to run, wherever they lie: those of the start stay."""
NO_PLUGINS = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"
GUARDED_FOLDERS = ("*.egg-info", "*.dist-info")
GIT = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
APPLY_S = 60.0
SETTLE_S = 30.0
"""What a run may take beside its tests."""
MOST_CHARS = 96 << 20
KILLED = 128
NO_PROGRAM = (126, 127)
REMOVE = """for path do
  rest=$path/ part=
  while [ -n "$rest" ]; do
    part=$part${rest%%/*}; rest=${rest#*/}
    [ ! -L "$part" ] || exit 9
    part=$part/
  done
  rm -rf -- "$path" || exit 8
done"""
LINKED = 9


async def grade(open_box: OpenBox, reference: Reference, patch: bytes) -> Verdict:
    """Judge a patch; the box is gone when this returns. Raises WorkFailed."""
    wrong = complaint(patch)
    if wrong:
        return wrong
    box = await open_box(reference.spec)
    try:
        return await Grading(box, reference).of(patch)
    finally:
        await box.close()


class Grading:
    """One grading in one box."""

    def __init__(self, box: Box, reference: Reference) -> None:
        self.box = box
        self.reference = reference
        self.verifier = reference.verifier
        self.workdir = reference.workdir or box.directory.decode()
        self.env = {**VARIABLES, **GIT, "GIT_CEILING_DIRECTORIES": dirname(self.workdir)}

    async def of(self, patch: bytes) -> Verdict:
        """Apply, put the tests in place, run, judge."""
        if self.reference.base is not None:
            await self.box.put(self.reference.base, self.workdir)
        try:
            return await self._judged(patch)
        except WorkFailed as error:
            if error.code != BOX_SPOILT:
                raise
            return Verdict(BOX_SPOILT, f"with it {error}")

    async def _judged(self, patch: bytes) -> Verdict:
        wrong = await self._apply(patch) or await self._clear() or await self._lay()
        if wrong:
            return wrong
        command = pytest_command(self.verifier.command)
        if self.verifier.parser == "pytest" and command:
            judged = await self._by_witness(command)
        else:
            judged = await self._by_shell()
        if isinstance(judged, TestLog):
            judged = verdict(judged, self.verifier.fail_to_pass, self.verifier.pass_to_pass)
        return await self._altered() or judged if judged.resolved else judged

    async def _apply(self, patch: bytes) -> Verdict | None:
        """Why a patch is not applied; None when it is."""
        moved = renamed_away(patch, GUARDED) if self._guards() else ""
        if moved:
            return Verdict("guarded", f"it renames {moved}, which says how tests are run")
        left_out = [f"--exclude={pattern}" for pattern in self._excluded()]
        listed = await self._git(patch, "--numstat", *left_out)
        if listed.exit_code == 0 and not listed.output.strip():
            return Verdict("only_tests", "it changes nothing but tests and how they are run")
        ran = await self._git(patch, "--whitespace=nowarn", *left_out)
        if ran.exit_code == 0:
            return None
        await self._probe()
        said = ran.output.strip().splitlines()
        first = said[0][:300] if said else f"git ended with {ran.exit_code}"
        code = "path" if "invalid path" in ran.output or "beyond a symbolic" in first else ""
        return Verdict(code or "not_applied", f"the patch is not applied: {first}")

    def _excluded(self) -> Iterator[str]:
        """Patterns of what a patch may say nothing about."""
        for path in self.verifier.replace:
            plain = "".join(f"[{each}]" if each in "*?[" else each for each in path)
            yield from (plain, f"{plain}/*")
        if self._guards():
            for name in GUARDED:
                yield from (name, f"*/{name}")
            for folder in GUARDED_FOLDERS:
                yield f"{folder}/*"

    def _guards(self) -> bool:
        """Whether Python runs the tests."""
        return self.verifier.parser in ("pytest", "unittest")

    async def _git(self, patch: bytes, *words: str) -> Ran:
        ran = await self.box.run(
            ["git", "apply", *words, "-"],
            stdin=patch,
            cwd=self.workdir,
            env=self.env,
            timeout_s=APPLY_S,
        )
        if ran.exit_code in NO_PROGRAM:
            msg = f"git cannot be run in the box: {ran.output.strip()[:300]}"
            raise WorkFailed("bad_image", msg, retriable=False)
        return ran

    async def _clear(self) -> Verdict | None:
        """Remove what the tests replace; a link on the way is none of theirs."""
        if not self.verifier.replace:
            return None
        remove = ["/bin/sh", "-c", REMOVE, "sh", *self.verifier.replace]
        ran = await self.box.run(remove, cwd=self.workdir, timeout_s=APPLY_S)
        if ran.exit_code == LINKED:
            return Verdict("link", "a link lies where the tests are to be put")
        if ran.exit_code:
            await self._probe()
            return Verdict("invalid", f"the tests cannot be replaced: {ran.output[:300]}")
        return None

    async def _lay(self) -> Verdict | None:
        """Put the tests in place, wherever the patch lets them be put."""
        await asyncio.to_thread(tar_streams.checked, self.reference.tests)  # their own faults first
        return await self._placed(self.reference.tests)

    async def _placed(self, files: bytes) -> Verdict | None:
        """Put files of ours into the tree as the patch has left it; why that cannot be."""
        try:
            await self.box.put(files, self.workdir)
        except WorkFailed as error:
            if error.code != "bad_archive":
                raise
            await self._probe()
            return Verdict("invalid", f"the tests cannot be put in place: {error}")
        return None

    async def _by_witness(self, command: PytestCommand) -> TestLog | Verdict:
        """Run pytest under a supervisor."""
        control = controls(_tests_directory(self.verifier.fail_to_pass[0]))
        files = tar_streams.of_files({control.path: control.text.encode()})
        if wrong := await self._placed(files):
            return wrong
        nonce, token = secrets.token_hex(16), secrets.token_hex(16)
        plan = self._plan(command, control, nonce, token)
        program = f"{_source(process_tree)}\n{_source(supervisor)}\n"
        program += f"supervise(json.loads({json.dumps(plan)!r}))\n"
        ran = await self.box.run(
            [command.interpreter, "-I", "-S", "-"],
            stdin=program.encode(),
            cwd=self.workdir,
            timeout_s=self.verifier.timeout_sec + SETTLE_S,
            most_chars=MOST_CHARS,
        )
        if ran.exit_code in NO_PROGRAM and self._in_tree(command.interpreter):
            return Verdict("invalid", f"{command.interpreter} cannot be run with it")
        if ran.exit_code in NO_PROGRAM:
            msg = f"{command.interpreter} cannot be run in the box: {ran.output.strip()[:300]}"
            raise WorkFailed("bad_image", msg, retriable=False)
        seen = seen_in(ran.output, nonce)
        if seen is None:
            return await self._no_end(ran)
        if seen["wrong"]:
            return self._ended_early(str(seen["wrong"]))
        return witnessed(seen, token, control.expected)

    def _in_tree(self, program: str) -> bool:
        """Whether a patch could have changed it."""
        place = normpath(join(self.workdir, program))
        return "/" in program and place.startswith(f"{self.workdir}/")

    def _plan(
        self, command: PytestCommand, control: Controls, nonce: str, token: str
    ) -> Mapping[str, object]:
        """What the supervisor is told, and through it the witness."""
        argv = [
            *command.argv, f"--rootdir={self.workdir}", "-p", "no:cacheprovider", "-o", "addopts=",
            "--continue-on-collection-errors", "--maxfail=0", "--color=no",
        ]  # fmt: skip
        search = replace(command, env={**self.verifier.env, **command.env}).search(self.workdir)
        env = {**VARIABLES, **self.verifier.env, **command.env}
        env = {name: value for name, value in env.items() if not _steers(name)}
        return {
            "nonce": nonce,
            "timeout_s": self.verifier.timeout_sec,
            "output_bytes": self.reference.output_bytes,
            "env": env,
            "program": _source(pytest_witness),
            "witness": {
                "token": token,
                "cwd": self.workdir,
                "paths": search,
                "plugins": NO_PLUGINS not in {**self.verifier.env, **command.env},
                "argv": [*argv, control.path] if command.has_paths else argv,
            },
        }

    async def _by_shell(self) -> TestLog | Verdict:
        """Run a command by a shell, which frames what it prints."""
        frame = Frame()
        script = frame.around(self.verifier.command, status=0, subshell=True)
        ran = await self.box.run(
            ["/bin/sh"],
            stdin=script,
            cwd=self.workdir,
            env=dict(self.verifier.env),
            timeout_s=self.verifier.timeout_sec,
            most_chars=self.reference.output_bytes,
        )
        if ran.timed_out:
            return self._ended_early("timeout")
        if ran.elided_chars:
            return self._ended_early("flood")
        output = frame.take(ran.output.encode()).decode()
        if frame.exit_code is None:
            return await self._no_end(ran)
        return replace(parse(self.verifier.parser, output), exit_code=frame.exit_code)

    def _ended_early(self, why: str) -> Verdict:
        texts = {
            "timeout": f"the tests take more than {self.verifier.timeout_sec:g} s",
            "flood": "the tests print more than is read",
        }
        return Verdict(why, texts.get(why, f"the run was {why}"))

    async def _no_end(self, ran: Ran) -> Verdict:
        """Of a run that does not say how it ended; raises WorkFailed where the box did not."""
        await self._probe()
        if ran.oom:
            return Verdict("out_of_memory", "the tests take more memory than the box has")
        how = f"signal {ran.exit_code - KILLED}" if ran.exit_code > KILLED else "no word"
        return Verdict("killed", f"whoever ran the tests ended with {how}")

    async def _altered(self) -> Verdict | None:
        """Whether the tests that were run are still those that were put there."""
        if not self._guards():
            return None
        put = tar_streams.files(self.reference.tests)
        for folder in sorted({name.partition("/")[0] for name in put if name.endswith(".py")}):
            try:
                tar = await self.box.get(f"{self.workdir}/{folder}", most_bytes=MOST_CHARS)
            except WorkFailed as error:
                await self._probe()
                return Verdict("invalid", f"the tests are not as they were put: {error}")
            above = "" if "/" not in folder else f"{dirname(folder)}/"
            found = {f"{above}{name}": content for name, content in tar_streams.files(tar).items()}
            for name, content in put.items():
                mine = name == folder or name.startswith(f"{folder}/")
                if mine and name.endswith(".py") and found.get(name) != content:
                    return Verdict("invalid", f"test file {name} was changed while it was run")
        return None

    async def _probe(self) -> None:
        """Raises WorkFailed where the box cannot even do nothing."""
        await probe(self.box, timeout_s=SETTLE_S)


def _tests_directory(test: str) -> str:
    return dirname(test.partition("::")[0])


def _steers(name: str) -> bool:
    """Whether a variable would tell Python or pytest how to run; the plan says that."""
    return name == "PYTHONPATH" or (name.startswith("PYTEST_"))


def _source(module: object) -> str:
    return inspect.getsource(module)  # type: ignore[arg-type]
