"""The progress messages of a slow `up`."""

from pathlib import Path

from rollcall.compose.services.artifacts import LOCKS, missing, read_lock
from rollcall.compose.services.embedded import _progress


def test_downloads_are_counted_and_then_the_services_are_named(tmp_path: Path) -> None:
    told: list[str] = []
    artifacts = [each for lock in LOCKS.glob("*.lock") for each in read_lock(lock)]

    _progress(tmp_path, told.append, ["kafka"])
    for artifact in artifacts:
        path = artifact.path(tmp_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    _progress(tmp_path, told.append, ["kafka", "registry"])

    assert told[0].startswith(f"downloading: {len({a.path(tmp_path) for a in artifacts})} files")
    assert told[1].startswith("starting kafka and registry")
    assert missing(LOCKS.glob("*.lock"), tmp_path) == 0
