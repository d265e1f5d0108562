"""The work on a task in a box, and its patch at the end of an episode."""

import asyncio
from contextlib import closing
from dataclasses import dataclass, field

from rollcall.sandbox.artefacts import PATCH, Artefact, ArtefactSpool, keep
from rollcall.sandbox.boxes import tar_streams
from rollcall.sandbox.boxes.box import Box
from rollcall.sandbox.environments.work_patch import take_patch
from rollcall.sandbox.grading.patches import MOST_BYTES
from rollcall.sandbox.host import Host
from rollcall.sandbox.tasks.harbor import HarborTask


@dataclass(frozen=True, slots=True)
class WorkResult:
    """The artefacts and info that an episode leaves."""

    artefacts: list[Artefact] = field(default_factory=list)
    info: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskWork:
    """The files of a task in a box, as they were at the start."""

    task: HarborTask
    tree: str
    """The tree id of the original files in the repository that was made there."""
    workdir: str
    """The directory of the files; empty for the box's own directory."""

    async def taken(self, box: Box, host: Host) -> WorkResult:
        """Store the patch as an object; an empty one if nothing was changed.

        Of a patch that is too large only the size is recorded, which is all that grading needs. If
        git cannot make one, `info` says why. `info` also names files that are not in the patch,
        such as ignored ones. Raises WorkFailed for retriable errors.
        """
        testbed = None if self.workdir else self.task.testbed
        base = await asyncio.to_thread(tar_streams.of_directory, testbed) if testbed else None
        place = self.workdir or box.directory.decode()
        with closing(ArtefactSpool(MOST_BYTES)) as spool:
            patch = await take_patch(box, spool, workdir=place, base=base, tree=self.tree)
            if patch.too_large:
                told = f"not kept: {patch.untaken or 'it is larger than any that is judged'}"
                return WorkResult([Artefact(PATCH, "", "", patch.size, told)])
            if patch.untaken:
                return WorkResult(info={"no_patch": patch.untaken})
            left_out = {"left_out": list(patch.left_out)} if patch.left_out else {}
            return WorkResult([await keep(host, PATCH, spool)], {**left_out})
