"""The check that a box is alive, and the attribution of its failure to the host or to the agent.

The distinction matters for rewards: an agent that could make its box count as dead would never get
a reward of zero. So the check avoids everything that the agent controls, and a box whose memory the
agent's processes hold for good is attributed to the agent.
"""

from rollcall.sandbox.boxes.box import Box
from rollcall.schemas.errors import FailureCode, WorkFailed

NOTHING = ("/bin/sh", "-c", ":")
PROBE_S = 20.0


async def probe(box: Box, *, timeout_s: float = PROBE_S) -> None:
    """Raise WorkFailed if a box cannot run an empty command.

    The code is `box_spoilt`, not retriable, if its processes hold all its memory; else `box_died`.
    The command runs in `/`, since the agent may have locked the box's own directory.
    """
    ran = await box.run(NOTHING, timeout_s=timeout_s, cwd="/")
    if ran.oom:
        raise memory_held()
    if ran.exit_code:
        how = f"within {timeout_s:g} s" if ran.timed_out else f"({ran.output.strip()[:300]})"
        msg = f"the box is dead: a shell that is to do nothing does not do it {how}"
        raise WorkFailed(FailureCode.BOX_DIED, msg, retriable=True)


def memory_held() -> WorkFailed:
    """Return the error `box_spoilt` for a box in which an empty command was OOM-killed."""
    msg = "what was done in the box holds all the memory that it may have"
    return WorkFailed(FailureCode.BOX_SPOILT, msg, retriable=False)
