"""Whether the judge itself resolves a task by its gold, and not by a patch that mends nothing.

So what the judge leaves out of a patch, or does not believe, is known when a task is made.
"""

from collections.abc import Awaitable, Callable

from sandbox.boxes.box import Box, Spec
from sandbox.grading.grading import grade
from sandbox.grading.reference import reference_of
from sandbox.tasks.harbor import HarborTask
from schemas.errors import Refused
from schemas.foreign_text import plain

IDLE = b"diff --git a/.mends-nothing b/.mends-nothing\nnew file mode 100644\n"
"""For an empty one, which the judge does not even try: it adds an empty file."""


async def prove(
    open_box: Callable[[Spec], Awaitable[Box]],
    task: HarborTask,
    *,
    spec: Spec | None = None,
    times: int = 1,
) -> None:
    """Have the judge judge gold so many times, then a patch that mends nothing.

    Without `spec` in the box of the task's own image. Raises Refused where a verdict is not as it
    must be, WorkFailed where there is none.
    """
    reference = reference_of(task, spec)
    if task.gold is None:
        msg = f"{task.name} cannot be proven: solution/gold.patch is missing"
        raise Refused(msg)
    for number in range(1, times + 1):
        verdict = await grade(open_box, reference, task.gold)
        if not verdict.resolved:
            which = f" (time {number} of {times})" if times > 1 else ""
            msg = f"the judge does not resolve it with its own gold patch{which}: {verdict}"
            raise Refused(plain(msg))
    verdict = await grade(open_box, reference, IDLE)
    if verdict.code != "failed":
        msg = f"with a patch that mends nothing it must fail, and the judge says {verdict}"
        raise Refused(plain(msg))
