"""Whether a box is alive: what tells a fault of ours from one of whoever works in it."""

from sandbox.boxes.box import Box
from schemas.errors import WorkFailed

NOTHING = ("/bin/sh", "-c", ":")
PROBE_S = 20.0


async def probe(box: Box, *, timeout_s: float = PROBE_S) -> None:
    """Raises WorkFailed(`box_died`) where a box cannot even do nothing."""
    ran = await box.run(NOTHING, timeout_s=timeout_s)
    if ran.exit_code:
        how = f"within {timeout_s:g} s" if ran.timed_out else f"({ran.output.strip()[:300]})"
        msg = f"the box is dead: a shell that is to do nothing does not do it {how}"
        raise WorkFailed("box_died", msg, retriable=True)
