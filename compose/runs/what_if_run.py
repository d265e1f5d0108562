"""Training of another learner on a run's batches."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollcall.compose.pages.what_if_page import success_lines, train_otherwise
from rollcall.compose.runs.changed_learner import changed_learner
from rollcall.compose.runs.export_policy import export_state
from rollcall.compose.runs.held_out_trial import held_out, require_alone
from rollcall.compose.runs.run_folder import RunFolder
from rollcall.compose.settings import Settings
from rollcall.consumers.history.reading.history import History
from rollcall.schemas.atomic_files import require_unused
from rollcall.trainer.checkpoints.learner_state import LearnerState


def what_if(
    history: History,
    folder: RunFolder,
    steps: tuple[int, int],
    changes: Sequence[str],
    without_task: str,
    *,
    version: int | None,
    threads: int,
    out: Path | None,
    tell: Callable[[str], None],
    playing: Settings | None = None,
) -> dict[str, Any]:
    """Train, report, and write the policy to `out`; raises Refused before it trains.

    With `playing`, both results are evaluated on the run's held-out seeds.
    """
    if playing is not None:
        require_alone(folder)
    if out is not None:
        require_unused(out.expanduser().absolute(), "--out")
    config = changed_learner(folder, changes)
    report, (then, now) = train_otherwise(
        history,
        folder.trained(),
        steps,
        config,
        version=version,
        without_task=without_task,
        threads=threads,
        tell=tell,
    )
    if out is not None:
        export_state(folder, now, out)
        tell(f"the other policy is in {out}; `rollcall publish-policy` serves it beside the run's")
    if playing is not None:
        report |= _compared(folder, {"then": then, "now": now}, playing, tell)
    return report | {"with": list(changes)}


def _compared(
    folder: RunFolder,
    states: Mapping[str, LearnerState],
    settings: Settings,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Evaluate both results on the held-out seeds; report them in lines and return them."""
    with tempfile.TemporaryDirectory(prefix="rollcall-what-if-") as scratch:
        directories = {name: Path(scratch) / name for name in states}
        for name, state in states.items():
            export_state(folder, state, directories[name])
        found = held_out(folder, directories, settings)
    for line in success_lines(found["then"], found["now"]):
        tell(line)
    return {"held_out": {name: each.share for name, each in found.items()}}
