"""Paths of a host that no box may see: state, tasks and checkouts hold the tests for grading."""

import os
from pathlib import Path

from rollcall.schemas.errors import WorkFailed

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
    raise WorkFailed("bad_config", msg, retriable=False)
