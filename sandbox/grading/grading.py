"""A patch is judged in a box where nobody has been: applied, then tested by what was put in after.

What the patch could have written is not trusted. Its changes to tests, and to what tells a test
runner how to run (`guarded`), are left out; the reference's tests replace whatever is in their
place. pytest is run by a witness under a supervisor (`pytest_witness`, `supervisor`), and when all
tests pass, some that were to be mended are run once more, each alone, in another box. Any other
command is run by a shell that frames its output with a nonce; a run that contradicts itself earns
nothing. A command that cannot be taken apart (`pytest_command`), or another runner, prints its own
results: there code under test that prints what its runner would print is believed.

A fault of the box is no verdict: `true` is run in it before the patch is blamed, and where no
runner is found, where the tests cannot be put in place, or where boxes die again and again, the
tests are run in one without the patch, for which time is kept. A
patch whose code takes all memory that the box may have is no fault of it (`sandbox.boxes.probe`).
Errors are WorkFailed, those that may be retried among them.
"""

import asyncio
import hashlib
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from posixpath import dirname

from sandbox.boxes import tar_streams
from sandbox.boxes.box import BOX_DIED, BOX_SPOILT, VARIABLES, Box, Ran, Spec
from sandbox.boxes.frame import Frame
from sandbox.boxes.probe import probe
from sandbox.grading.controls import controls
from sandbox.grading.guarded import FILES, Guarded
from sandbox.grading.marks import CONFTEST, Marks
from sandbox.grading.parsing import NotRead, parsed
from sandbox.grading.patches import complaint, renamed_away
from sandbox.grading.pytest_command import PytestCommand, pytest_command
from sandbox.grading.reference import Reference
from sandbox.grading.verdict import TestLog, Verdict, verdict
from sandbox.grading.witness_plan import WitnessPlan, witness_plan
from sandbox.grading.witnessed import NoRunner, seen_in, witnessed, witnessed_alone
from sandbox.tasks.testbed import commit_all
from schemas.errors import WorkFailed

OpenBox = Callable[[Spec], Awaitable[Box]]
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
RUNS = 3
"""A grading may run the tests so often: together, alone, and without the patch."""
MOST_FILES = 500
"""So many test files of an image are looked at for marks."""
MOST_DEATHS = 3
"""So many boxes in a row may die of a patch before it is blamed."""
CONFTESTS = f"find . -name {CONFTEST} -not -path './.git/*' -exec cat {{}} +"


def longest_s(tests_s: float) -> float:
    """The time that one run of tests, and everything beside it, may take."""
    return tests_s + 2 * APPLY_S + SETTLE_S


async def grade(
    open_box: OpenBox, reference: Reference, patch: bytes, *, within_s: float = math.inf
) -> Verdict:
    """Judge a patch; its boxes are gone when this returns. Raises WorkFailed.

    `within_s` is time for at least `RUNS` of the longest runs.
    """
    wrong = complaint(patch)
    if wrong:
        return wrong
    broken = None
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
            if error.code != BOX_DIED:
                raise
            broken = f"{error} ({number + 1} times)"
    try:
        await _in_a_box(open_box, reference, None)  # is it the patch?
    except NoRunner as error:
        raise WorkFailed("bad_image", str(error), retriable=False) from error
    except NotRead as error:
        raise WorkFailed("bad_task", str(error), retriable=False) from error
    return Verdict("broken", f"without the patch the tests run, with it {broken}")


def too_long(tests_s: float, most_s: float) -> str:
    """Why patches could wait until no scorer judges them; empty where they cannot."""
    needed_s = RUNS * longest_s(tests_s)
    if needed_s <= most_s:
        return ""
    return (
        f"its tests may take {tests_s:g} s, and a grading that runs them {RUNS} times "
        f"{needed_s:g} s; a scorer may take {most_s:g} s: raise rewards.waiting_timeout_s"
    )


async def _judged(open_box: OpenBox, reference: Reference, patch: bytes) -> Verdict:
    """Judge by all tests together; where all pass, by some of them alone in another box.

    There nothing is left of what the tests have made.
    """
    judged = await _in_a_box(open_box, reference, patch)
    if not judged.resolved or not _is_witnessed(reference):
        return judged
    alone = await _in_a_box(open_box, reference, patch, alone=True)
    return judged if alone.resolved else alone


async def _in_a_box(
    open_box: OpenBox, reference: Reference, patch: bytes | None, *, alone: bool = False
) -> Verdict:
    """Raises NoRunner where the tests cannot be begun."""
    box = await open_box(reference.spec)
    try:
        return await Grading(box, reference).of(patch, alone=alone)
    finally:
        await box.close()


def _is_witnessed(reference: Reference) -> bool:
    """Whether a witness can run the tests, and see each of them."""
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
        """Apply, put the tests in place, run, judge; without a patch only for a runner's sake."""
        if self.reference.base is not None:
            await self.box.put(self.reference.base, self.workdir)
        else:  # or what the patch adds could read what came later
            await commit_all(self.box, self.workdir, "the image")
        try:
            return await self._judged(patch, alone=alone)
        except WorkFailed as error:
            if error.code != BOX_SPOILT:
                raise
            return Verdict(BOX_SPOILT, f"with it {error}")

    async def _judged(self, patch: bytes | None, *, alone: bool) -> Verdict:
        # Their own faults come first.
        self.tests = await asyncio.to_thread(tar_streams.files, self.reference.tests)
        self.guarded = Guarded(self.verifier, self.workdir, frozenset(self.tests))
        python = {name: text for name, text in self.tests.items() if name.endswith(".py")}
        marks = Marks({**await self._texts_before(), **python}, self.guarded.holds)
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
        return (judged.resolved and await self._altered()) or judged

    async def _texts_before(self) -> Mapping[str, bytes]:
        """Of the tree as it was, `conftest.py` files and test files that are not laid anew."""
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
        """Why a patch is not applied; None when it is."""
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
            msg = f"the tests cannot be replaced: {ran.output[:300]}"
            raise NoRunner(msg)
        return None

    async def _place(self) -> None:
        """Lay the tests over the tree as the patch has left it. Raises NoRunner."""
        try:
            await self.box.put(self.reference.tests, self.workdir)
        except WorkFailed as error:
            if error.code != "bad_archive":
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
        """Whether some of the mended tests pass alone, each in a new process."""
        mended = list(self.verifier.fail_to_pass)
        drawn = secrets.SystemRandom().sample(mended, min(self.reference.alone, len(mended)))
        tokens = {test: secrets.token_hex(16) for test in drawn}
        seen = await self._supervised(plan, plan.alone(tokens))
        return seen if isinstance(seen, Verdict) else witnessed_alone(seen, tokens)

    async def _supervised(
        self, plan: WitnessPlan, program: bytes
    ) -> Mapping[str, object] | Verdict:
        """What a supervisor saw; a verdict where it saw no end. Raises NoRunner."""
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
        """Run a command by a shell, which frames what it prints."""
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

    async def _no_end(self, ran: Ran) -> Verdict:
        """Of a run that does not say how it ended; raises WorkFailed where the box did not."""
        await self._probe()
        if ran.oom:
            return Verdict("out_of_memory", "the tests take more memory than the box has")
        how = f"signal {ran.exit_code - KILLED}" if ran.exit_code > KILLED else "no word"
        return Verdict("killed", f"whoever ran the tests ended with {how}")

    async def _altered(self) -> Verdict | None:
        """Whether the tests that were run are still those that were put there."""
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
        """Raises WorkFailed where the box cannot even do nothing."""
        await probe(self.box, timeout_s=SETTLE_S)
