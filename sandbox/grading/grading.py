"""Grading of a patch in an unused box: apply it, put the reference's tests in place, run them.

Nothing that the patch could have written is trusted. Its changes to tests, and to the files that
configure a test runner (`guarded`), are left out; the reference's tests replace the files at their
paths. pytest is run by a witness under a supervisor (`pytest_witness`, `supervisor`), and when all
tests pass, some of the fail-to-pass tests are run again, each alone, in another box. Any other
command is run by a shell that frames its output with a nonce; a run that contradicts itself scores
0. If a command cannot be parsed (`pytest_command`), or is another runner's, its printed results
count: there code under test can forge results by printing what its runner would print.

A fault of the box is not a verdict. An empty command is run in the box before the patch is blamed.
If no runner is found, if the tests cannot be put in place, or if boxes die repeatedly, the tests
are run in a box without the patch, for which time is reserved. A patch whose code uses up the box's
memory is not a fault of the box (`rollcall.sandbox.boxes.probe`). Errors are WorkFailed, retriable
or not.
"""

import asyncio
import hashlib
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from posixpath import dirname

from rollcall.sandbox.boxes import tar_streams
from rollcall.sandbox.boxes.box import VARIABLES, Box, CommandResult, Spec
from rollcall.sandbox.boxes.frame import Frame
from rollcall.sandbox.boxes.probe import probe
from rollcall.sandbox.grading.guarded import FILES, Guarded
from rollcall.sandbox.grading.outcomes import CONFTEST, Marks, NotRead, parsed
from rollcall.sandbox.grading.patches import complaint, renamed_away
from rollcall.sandbox.grading.reference import Reference
from rollcall.sandbox.grading.verdict import TestLog, Verdict, verdict
from rollcall.sandbox.grading.witness_plan import (
    PytestCommand,
    WitnessPlan,
    controls,
    pytest_command,
    witness_plan,
)
from rollcall.sandbox.grading.witnessed import NoRunner, seen_in, witnessed, witnessed_alone
from rollcall.sandbox.tasks.testbed import commit_all
from rollcall.schemas.errors import FailureCode, WorkFailed

OpenBox = Callable[[Spec], Awaitable[Box]]
GIT = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
APPLY_S = 60.0
SETTLE_S = 30.0
"""Seconds that a run may take beside its tests."""
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
RUNS = 3
"""The most runs of the tests in one grading: together, alone, and without the patch."""
MOST_FILES = 500
"""The number of an image's test files that are searched for marks."""
MOST_DEATHS = 3
"""The number of boxes that may die in a row before the patch is suspected."""
CONFTESTS = f"find . -name {CONFTEST} -not -path './.git/*' -exec cat {{}} +"


def longest_s(tests_s: float) -> float:
    """Return the most seconds that one run of tests, with its preparation, may take."""
    return tests_s + 2 * APPLY_S + SETTLE_S


async def grade(
    open_box: OpenBox, reference: Reference, patch: bytes, *, within_s: float = math.inf
) -> Verdict:
    """Judge a patch; its boxes are closed when this returns. Raises WorkFailed.

    `within_s` must allow at least `RUNS` of the longest runs.
    """
    wrong = complaint(patch)
    if wrong:
        return wrong
    broken = None
    # Time stays for a run without the patch, which decides whether the patch is to blame.
    until = time.monotonic() + within_s - RUNS * longest_s(reference.verifier.timeout_sec)
    for number in range(MOST_DEATHS):
        if number and time.monotonic() > until:
            break
        try:
            return await _judged(open_box, reference, patch)
        except (NoRunner, NotRead) as error:
            broken = str(error)
            break
        except WorkFailed as error:
            if error.code != FailureCode.BOX_DIED:
                raise
            broken = f"{error} ({number + 1} times)"
    try:
        await _in_a_box(open_box, reference, None)  # does it also fail without the patch?
    except NoRunner as error:
        raise WorkFailed(FailureCode.BAD_IMAGE, str(error), retriable=False) from error
    except NotRead as error:
        raise WorkFailed(FailureCode.BAD_TASK, str(error), retriable=False) from error
    return Verdict("broken", f"without the patch the tests run, with it {broken}")


def too_long(tests_s: float, most_s: float) -> str:
    """Return why a grading could exceed a scorer's time; empty if it cannot."""
    needed_s = RUNS * longest_s(tests_s)
    if needed_s <= most_s:
        return ""
    return (
        f"its tests may take {tests_s:g} s, and a grading that runs them {RUNS} times "
        f"{needed_s:g} s; a scorer may take {most_s:g} s: raise rewards.waiting_timeout_s"
    )


async def _judged(open_box: OpenBox, reference: Reference, patch: bytes) -> Verdict:
    """Judge by all tests together; if all pass, also by some of them alone in another box.

    The other box holds nothing that the tests of the first run have written.
    """
    judged = await _in_a_box(open_box, reference, patch)
    if not judged.resolved or not _is_witnessed(reference):
        return judged
    alone = await _in_a_box(open_box, reference, patch, alone=True)
    return judged if alone.resolved else alone


async def _in_a_box(
    open_box: OpenBox, reference: Reference, patch: bytes | None, *, alone: bool = False
) -> Verdict:
    """Grade in a new box. Raises NoRunner if the tests cannot be started."""
    box = await open_box(reference.spec)
    try:
        return await Grading(box, reference).of(patch, alone=alone)
    finally:
        await box.close()


def _is_witnessed(reference: Reference) -> bool:
    """Return True if a witness can run the tests and observe each of them."""
    verifier = reference.verifier
    return verifier.parser == "pytest" and pytest_command(verifier.command) is not None


class Grading:
    """One grading in one box."""

    def __init__(self, box: Box, reference: Reference) -> None:
        self.box = box
        self.reference = reference
        own = {**reference.spec.env, **reference.verifier.env}
        self.verifier = reference.verifier.model_copy(update={"env": own})
        self.workdir = reference.workdir or box.directory.decode()
        self.env = {**VARIABLES, **GIT, "GIT_CEILING_DIRECTORIES": dirname(self.workdir)}
        self.tests: Mapping[str, bytes] = {}
        self.guarded = Guarded(self.verifier, self.workdir, frozenset())

    async def of(self, patch: bytes | None, *, alone: bool = False) -> Verdict:
        """Apply the patch, put the tests in place, run and judge; None tests the image alone."""
        if self.reference.base is not None:
            await self.box.put(self.reference.base, self.workdir)
        else:  # a commit without history, so that code of the patch cannot read later commits
            await commit_all(self.box, self.workdir, "the image")
        try:
            return await self._judged(patch, alone=alone)
        except WorkFailed as error:
            if error.code != FailureCode.BOX_SPOILT:
                raise
            return Verdict("box_spoilt", f"with it {error}")

    async def _judged(self, patch: bytes | None, *, alone: bool) -> Verdict:
        # Errors of the reference itself are raised before the patch is applied.
        self.tests = await asyncio.to_thread(tar_streams.files, self.reference.tests)
        self.guarded = Guarded(self.verifier, self.workdir, frozenset(self.tests))
        python = {name: text for name, text in self.tests.items() if name.endswith(".py")}
        before = {} if alone else await self._texts_before()
        marks = Marks({**before, **python}, self.guarded.holds)
        wrong = await self._apply(patch) if patch is not None else None
        wrong = wrong or await self._clear()
        if wrong:
            return wrong
        await self._place()
        command = pytest_command(self.verifier.command)
        plan = self._plan(command) if command and _is_witnessed(self.reference) else None
        if plan and alone:
            return await self._alone(plan)
        judged = await (self._by_witness(plan) if plan else self._by_shell())
        if isinstance(judged, TestLog):
            wanted = self.verifier.fail_to_pass, self.verifier.pass_to_pass
            judged = verdict(judged, *wanted, marks.allow)
        # A resolved run counts only if its test files are still those that were put there.
        return (judged.resolved and await self._altered()) or judged

    async def _texts_before(self) -> Mapping[str, bytes]:
        """Return the original texts of `conftest.py` files and of test files not replaced later."""
        if not self.guarded.python:
            return {}
        named = self.guarded.test_files - self.tests.keys()
        if self.reference.base is not None:
            found = await asyncio.to_thread(tar_streams.files, self.reference.base)
            wanted = {name for name in found if name.rpartition("/")[2] == CONFTEST} | named
            return {name: found[name] for name in wanted & found.keys()}
        texts = {CONFTEST: await self._said(["/bin/sh", "-c", CONFTESTS])}
        for path in sorted(named)[:MOST_FILES]:
            texts[path] = await self._said(["cat", "--", path])
        return texts

    async def _said(self, command: list[str]) -> bytes:
        ran = await self.box.run(
            command, cwd=self.workdir, timeout_s=APPLY_S, most_chars=MOST_CHARS
        )
        return ran.output.encode()

    async def _apply(self, patch: bytes) -> Verdict | None:
        """Apply the patch; return a verdict if it does not apply, else None."""
        moved = renamed_away(patch, FILES) if self.guarded.python else ""
        if moved:
            return Verdict("guarded", f"it renames {moved}, which says how tests are run")
        left_out = [f"--exclude={pattern}" for pattern in self.guarded.patterns()]
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

    async def _git(self, patch: bytes, *words: str) -> CommandResult:
        ran = await self.box.run(
            ["git", "apply", *words, "-"],
            stdin=patch,
            cwd=self.workdir,
            env=self.env,
            timeout_s=APPLY_S,
        )
        if ran.exit_code in NO_PROGRAM:
            msg = f"git cannot be run in the box: {ran.output.strip()[:300]}"
            raise WorkFailed(FailureCode.BAD_IMAGE, msg, retriable=False)
        return ran

    async def _clear(self) -> Verdict | None:
        """Remove the paths that the tests replace; a symbolic link among them is a verdict."""
        if not self.verifier.replace:
            return None
        remove = ["/bin/sh", "-c", REMOVE, "sh", *self.verifier.replace]
        ran = await self.box.run(remove, cwd=self.workdir, timeout_s=APPLY_S)
        if ran.exit_code == LINKED:
            return Verdict("link", "a link lies where the tests are to be put")
        if ran.exit_code:
            await self._probe()
            msg = f"the tests cannot be replaced: {ran.output[:300]}"
            raise NoRunner(msg)
        return None

    async def _place(self) -> None:
        """Unpack the tests over the patched tree. Raises NoRunner."""
        try:
            await self.box.put(self.reference.tests, self.workdir)
        except WorkFailed as error:
            if error.code != FailureCode.BAD_ARCHIVE:
                raise
            await self._probe()
            msg = f"the tests cannot be put in place: {error}"
            raise NoRunner(msg) from error

    def _plan(self, command: PytestCommand) -> WitnessPlan:
        named, most = self.guarded.test_files, self.reference.output_bytes
        return witness_plan(self.verifier, command, self.workdir, self.tests, named, most)

    async def _by_witness(self, plan: WitnessPlan) -> TestLog | Verdict:
        """Run pytest under a supervisor."""
        control = controls()
        seen = await self._supervised(plan, plan.together(control))
        return seen if isinstance(seen, Verdict) else witnessed(seen, plan.token, control.expected)

    async def _alone(self, plan: WitnessPlan) -> Verdict:
        """Judge a sample of the fail-to-pass tests, each run alone in a new process."""
        mended = list(self.verifier.fail_to_pass)
        drawn = secrets.SystemRandom().sample(mended, min(self.reference.alone, len(mended)))
        tokens = {test: secrets.token_hex(16) for test in drawn}
        seen = await self._supervised(plan, plan.alone(tokens))
        return seen if isinstance(seen, Verdict) else witnessed_alone(seen, tokens)

    async def _supervised(
        self, plan: WitnessPlan, program: bytes
    ) -> Mapping[str, object] | Verdict:
        """Return a supervisor's report; a verdict if the run did not complete. Raises NoRunner."""
        interpreter = plan.command.interpreter
        ran = await self.box.run(
            [interpreter, "-I", "-S", "-"],
            stdin=program,
            cwd=self.workdir,
            timeout_s=self.verifier.timeout_sec + SETTLE_S,
            most_chars=MOST_CHARS,
        )
        if ran.exit_code in NO_PROGRAM:
            said = ran.output.strip()[:300]
            msg = f"{interpreter} cannot be run in the box: {said}"
            raise NoRunner(msg)
        seen = seen_in(ran.output, plan.nonce)
        if seen is None:
            return await self._no_end(ran)
        return self._ended_early(str(seen["wrong"])) if seen["wrong"] else seen

    async def _by_shell(self) -> TestLog | Verdict:
        """Run the command by a shell that frames its output."""
        frame = Frame()
        script = frame.around(self.verifier.command, status=0, subshell=True)
        ran = await self.box.run(
            ["/bin/sh"],
            stdin=script,
            cwd=self.workdir,
            env={"PYTHONNOUSERSITE": "1", **self.verifier.env},
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
        log = await parsed(self.verifier.parser, output)
        if frame.exit_code in NO_PROGRAM and not log.outcomes:
            msg = f"the tests' command cannot be run: {output.strip()[-300:]}"
            raise NoRunner(msg)
        return replace(log, exit_code=frame.exit_code)

    def _ended_early(self, why: str) -> Verdict:
        texts = {
            "timeout": f"the tests take more than {self.verifier.timeout_sec:g} s",
            "flood": "the tests print more than is read",
        }
        return Verdict(why, texts.get(why, f"the run was {why}"))

    async def _no_end(self, ran: CommandResult) -> Verdict:
        """Return the verdict on a run that did not complete. Raises WorkFailed if the box died."""
        await self._probe()
        if ran.oom:
            return Verdict("out_of_memory", "the tests take more memory than the box has")
        how = f"signal {ran.exit_code - KILLED}" if ran.exit_code > KILLED else "no word"
        return Verdict("killed", f"whoever ran the tests ended with {how}")

    async def _altered(self) -> Verdict | None:
        """Return a verdict if a test file was changed during the run, else None."""
        if not self.guarded.python:
            return None
        put = {name: text for name, text in self.tests.items() if name.endswith(".py")}
        digests = [f"{hashlib.sha256(text).hexdigest()}  {name}\n" for name, text in put.items()]
        ran = await self.box.run(
            ["sha256sum", "-c", "-"],
            stdin="".join(digests).encode(),
            cwd=self.workdir,
            timeout_s=APPLY_S,
            most_chars=MOST_CHARS,
        )
        if ran.exit_code == 0:
            return None
        await self._probe()
        said = ran.output.splitlines()
        altered = next((name for name in put if f"{name}: OK" not in said), "")
        return Verdict("invalid", f"test file {altered} was changed while it was run")

    async def _probe(self) -> None:
        """Raise WorkFailed if the box cannot run an empty command."""
        await probe(self.box, timeout_s=SETTLE_S)
