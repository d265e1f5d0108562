"""What a run's batches would have taught another learner."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from compose.pages.what_if_page import train_otherwise
from compose.runs.changed_learner import changed_learner
from compose.runs.export_policy import export_state
from compose.runs.run_folder import RunFolder
from consumers.history.history import History
from schemas.whole_files import refuse_used


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
) -> dict[str, Any]:
    """Train, tell, write the policy to `out`; the report. Raises Refused before it trains."""
    if out is not None:
        refuse_used(out.expanduser().absolute(), "--out")
    config = changed_learner(folder, changes)
    report, state = train_otherwise(
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
        export_state(folder, state, out)
        tell(f"the other policy is in {out}; `rollcall publish-policy` serves it beside the run's")
    return report | {"with": list(changes)}
