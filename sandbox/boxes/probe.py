"""Whether a box is alive, and if it is not, whose doing that is.

What tells a fault of ours from one of whoever works in it: who could have his box given up as dead
would never earn nothing. So a box is asked where nothing of his is in the way, and what he has
taken of it for good is his doing.
"""

from sandbox.boxes.box import BOX_DIED, BOX_SPOILT, Box
from schemas.errors import WorkFailed

NOTHING = ("/bin/sh", "-c", ":")
PROBE_S = 20.0


async def probe(box: Box, *, timeout_s: float = PROBE_S) -> None:
    """Raises WorkFailed where a box cannot even do nothing.

    `box_spoilt`, not to be tried again, where what was done in it has taken all its memory; else
    `box_died`. Its own directory is not needed for that: whoever works there may bar it.
    """
    ran = await box.run(NOTHING, timeout_s=timeout_s, cwd="/")
    if ran.oom:
        raise memory_held()
    if ran.exit_code:
        how = f"within {timeout_s:g} s" if ran.timed_out else f"({ran.output.strip()[:300]})"
        msg = f"the box is dead: a shell that is to do nothing does not do it {how}"
        raise WorkFailed(BOX_DIED, msg, retriable=True)


def memory_held() -> WorkFailed:
    """`box_spoilt`, where a program that did nothing was killed for want of memory."""
    msg = "what was done in the box holds all the memory that it may have"
    return WorkFailed(BOX_SPOILT, msg, retriable=False)
