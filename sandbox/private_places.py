"""Paths of a host that no box may see (state, tasks and checkouts hold the tests for grading), and
the read-only mounts of an agent's box, at the same paths as on the host.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollcall.sandbox.agents.agent_box import NOT_MOUNTED, named_mounts
from rollcall.schemas.errors import FailureCode, WorkFailed


def mounts(config: Mapping[str, Any], imports: Mapping[str, str]) -> dict[str, str]:
    """Return the mounts for an agent's imports and for `agent_config.mounts`; blocks.

    Paths below /usr are left out: a box has those of its image. Raises Refused, and
    WorkFailed(`bad_config`) for a named directory with content that no box may see.
    """
    shown = {place: source for place, source in imports.items() if _is_shown(place)}
    for named in named_mounts(config):
        check_given(named)
        for place, source in imports.items():
            if source != place and named.startswith(f"{place}/"):
                os.makedirs(source + named[len(place) :], exist_ok=True)  # a mount point
        if _is_shown(named):
            shown[named] = named
    return shown


def _is_shown(place: str) -> bool:
    return place not in NOT_MOUNTED and not place.startswith(("/usr/", "/lib/", "/lib64/"))


STATE, TASK, CHECKOUT = ".rollcall", "task.toml", ".git"
MOST_FOLDERS = 50_000
"""The most folders that are searched; a directory with more is refused."""


def check_given(place: str, *, checkout: bool = False) -> None:
    """Refuse a directory that is or holds a private place, or lies in state or in a task; blocks.

    `checkout`: git checkouts are allowed. Raises WorkFailed(`bad_config`).
    """
    real = Path(os.path.realpath(place))
    for above in (real, *real.parents):
        if above.name == STATE or (above / TASK).exists():
            _refuse(place, f"lies in {above}, which no box may see")
    marks = {STATE, TASK} if checkout else {STATE, TASK, CHECKOUT}
    for number, (folder, folders, files) in enumerate(os.walk(real)):
        if found := marks & {*folders, *files}:
            _refuse(place, f"holds {os.path.join(folder, min(found))}, which no box may see")
        if number >= MOST_FOLDERS:
            _refuse(place, f"has more than {MOST_FOLDERS:,} folders, more than are looked through")


def _refuse(place: str, why: str) -> None:
    msg = f"{place} is not shown to a box: it {why}; name a folder of the files that it needs"
    raise WorkFailed(FailureCode.BAD_CONFIG, msg, retriable=False)
