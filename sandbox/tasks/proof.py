"""Proves a task by the judge itself: its gold patch resolves it, and one that mends nothing fails.

So what the judge leaves out of a patch, or does not believe, is known when a task is made.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from sandbox.boxes.box import Box, Spec
from sandbox.grading.grading import grade, too_long
from sandbox.grading.reference import reference_of
from sandbox.grading.verdict import Verdict
from sandbox.tasks.harbor import HarborTask
from sandbox.tasks.verifier import Verifier
from schemas.errors import Refused, WorkFailed
from schemas.foreign_text import plain

IDLE = b"diff --git a/.mends-nothing b/.mends-nothing\nnew file mode 100644\n"
"""It adds an empty file: the judge does not even try an empty patch."""
TIMES = 5
"""The gold patch is judged so often; a test that does not pass each time is no criterion."""
MOST_ROUNDS = 4
"""Times TIMES: so many gradings at most, where tests fail now and then."""
MOST_ALONE = 64
"""Tests that are run alone, each time."""
NO_BOX = frozenset({"box_unavailable", "image"})
"""Codes of WorkFailed: no box of the task can be had on this host."""

OpenBox = Callable[[Spec], Awaitable[Box]]
Prover = Callable[[HarborTask], "Proof"]


@dataclass(frozen=True, slots=True)
class Proof:
    """What the judge says of a task's own gold patch."""

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    """Those of its tests that passed each time."""
    dropped: int = 0
    """So many of its tests did not."""
    lacking: str = ""
    """Why nothing is proven; empty where it is."""


def unproven(task: HarborTask, why: str) -> Proof:
    """The task as it is, with the reason why the judge could not be asked."""
    verifier = task.file.verifier
    return Proof(verifier.fail_to_pass, verifier.pass_to_pass, lacking=why)


def prover(open_box: OpenBox, most_s: float, spec: Spec | None = None) -> Prover:
    """Prove tasks in boxes of one kind, of their own images where no `spec` is given.

    A task of which no box can be had here is not proven, which is no fault of it. One is refused
    whose tests may take longer than a scorer, `most_s`.
    """

    def proven(task: HarborTask) -> Proof:
        if wrong := too_long(task.file.verifier.timeout_sec, most_s):
            raise Refused(plain(wrong))
        try:
            return asyncio.run(prove(open_box, task, spec=spec))
        except WorkFailed as error:
            if error.code in NO_BOX:
                return unproven(task, str(error))
            msg = f"the judge cannot judge it: {error}"
            raise Refused(plain(msg)) from error

    return proven


async def prove(
    open_box: OpenBox, task: HarborTask, *, spec: Spec | None = None, times: int = TIMES
) -> Proof:
    """Have the judge resolve a task by its gold patch so many times, and fail an idle one.

    A test that does not pass with gold, beside others or alone, is dropped. Raises Refused where a
    verdict is not as it must be, WorkFailed where there is none.
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
        raise Refused(plain(msg))
    verdict = await grade(open_box, reference, IDLE)
    if verdict.code != "failed":
        msg = f"with a patch that mends nothing it must fail, and the judge says {verdict}; is the "
        msg += "package installed in the image, or part of the test runner itself?"
        raise Refused(plain(msg))
    verifier = reference.verifier
    return Proof(
        verifier.fail_to_pass, verifier.pass_to_pass, count(given.verifier) - count(verifier)
    )


def without(verifier: Verifier, verdict: Verdict) -> Verifier:
    """The verifier without the tests that fail. Raises Refused where none is left to be mended."""
    failing = {*verdict.failing}
    mend = tuple(test for test in verifier.fail_to_pass if test not in failing)
    keep = tuple(test for test in verifier.pass_to_pass if test not in failing)
    if not mend or not failing:
        msg = f"the judge does not resolve it with its own gold patch: {verdict}"
        raise Refused(plain(msg))
    return verifier.model_copy(update={"fail_to_pass": mend, "pass_to_pass": keep})


def count(verifier: Verifier) -> int:
    """How many tests there are to pass."""
    return len(verifier.fail_to_pass) + len(verifier.pass_to_pass)
