"""The proof of a task by grading: its gold patch resolves it, and an idle patch fails.

So effects of grading, such as excluded paths and invalid runs, are found when a task is made.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from rollcall.sandbox.boxes.box import Box, Spec
from rollcall.sandbox.grading.grading import grade, too_long
from rollcall.sandbox.grading.reference import reference_of
from rollcall.sandbox.grading.verdict import Verdict
from rollcall.sandbox.tasks.harbor import HarborTask
from rollcall.sandbox.tasks.task_file import Verifier
from rollcall.schemas.errors import FailureCode, Refused, WorkFailed
from rollcall.schemas.untrusted_text import clean_text

IDLE = b"diff --git a/.mends-nothing b/.mends-nothing\nnew file mode 100644\n"
"""A patch that adds an empty file, since an empty patch is refused without a run."""
TIMES = 5
"""The number of gradings of the gold patch; a test that does not always pass is dropped."""
MOST_ROUNDS = 4
"""The most gradings, as a multiple of TIMES, if tests fail now and then."""
MOST_ALONE = 64
"""The most tests that are run alone in each grading."""
NO_BOX = frozenset({FailureCode.BOX_UNAVAILABLE, FailureCode.IMAGE})
"""Codes of WorkFailed if no box of the task can be opened on this host."""

OpenBox = Callable[[Spec], Awaitable[Box]]
Prover = Callable[[HarborTask], "Proof"]


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of grading a task's own gold patch."""

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    """The tests of the task that passed each time."""
    dropped: int = 0
    """The number of its tests that did not."""
    lacking: str = ""
    """The reason why the task is not proven; empty if it is."""


def unproven(task: HarborTask, why: str) -> Proof:
    """Return a task's own tests, with the reason why it was not graded."""
    verifier = task.file.verifier
    return Proof(verifier.fail_to_pass, verifier.pass_to_pass, lacking=why)


def prover(open_box: OpenBox, most_s: float, spec: Spec | None = None) -> Prover:
    """Return a function that proves tasks, in boxes of `spec` or else of their own images.

    A task whose box cannot be opened here stays unproven without an error. A task is refused if its
    tests may exceed a scorer's time, `most_s`.
    """

    def proven(task: HarborTask) -> Proof:
        if wrong := too_long(task.file.verifier.timeout_sec, most_s):
            raise Refused(clean_text(wrong))
        try:
            return asyncio.run(prove(open_box, task, spec=spec))
        except WorkFailed as error:
            if error.code in NO_BOX:
                return unproven(task, str(error))
            msg = f"the judge cannot judge it: {error}"
            raise Refused(clean_text(msg)) from error

    return proven


async def prove(
    open_box: OpenBox, task: HarborTask, *, spec: Spec | None = None, times: int = TIMES
) -> Proof:
    """Grade a task's gold patch until it is resolved `times` times, then an idle patch.

    A test that fails with the gold patch, together or alone, is dropped. Raises Refused for a
    wrong verdict, WorkFailed if there is none.
    """
    if task.gold is None:
        msg = f"{task.name} cannot be proven: solution/gold.patch is missing"
        raise Refused(msg)
    given = await asyncio.to_thread(reference_of, task, spec)
    reference = replace(given, alone=MOST_ALONE)
    resolved = 0
    for _ in range(MOST_ROUNDS * times):
        verdict = await grade(open_box, reference, task.gold)
        resolved += verdict.resolved
        if resolved == times:
            break
        if not verdict.resolved:
            reference = replace(reference, verifier=without(reference.verifier, verdict))
    else:
        msg = f"other tests fail each time that the judge judges its own gold patch: {verdict}"
        raise Refused(clean_text(msg))
    verdict = await grade(open_box, reference, IDLE)
    if verdict.code != "failed":
        msg = f"with a patch that mends nothing it must fail, and the judge says {verdict}; is the "
        msg += "package installed in the image, or part of the test runner itself?"
        raise Refused(clean_text(msg))
    verifier = reference.verifier
    return Proof(
        verifier.fail_to_pass, verifier.pass_to_pass, count(given.verifier) - count(verifier)
    )


def without(verifier: Verifier, verdict: Verdict) -> Verifier:
    """Return the verifier without failing tests. Raises Refused if no fail-to-pass test is left."""
    failing = {*verdict.failing}
    mend = tuple(test for test in verifier.fail_to_pass if test not in failing)
    keep = tuple(test for test in verifier.pass_to_pass if test not in failing)
    if not mend or not failing:
        msg = f"the judge does not resolve it with its own gold patch: {verdict}"
        raise Refused(clean_text(msg))
    return verifier.model_copy(update={"fail_to_pass": mend, "pass_to_pass": keep})


def count(verifier: Verifier) -> int:
    """Return the number of tests to pass."""
    return len(verifier.fail_to_pass) + len(verifier.pass_to_pass)
