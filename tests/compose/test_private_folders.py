"""State, objects and tasks belong to their owner alone, for every umask."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollcall.compose.cli import connection
from rollcall.compose.settings import Settings
from rollcall.sandbox.tasks.proof import unproven
from rollcall.sandbox.tasks.swe import import_rows
from rollcall.schemas.atomic_files import write_atomically
from rollcall.schemas.objects import ObjectStore
from rollcall.schemas.private_folders import make_private, tighten

MAKERS: dict[str, Callable[[Path], object]] = {
    "objects": lambda place: ObjectStore(str(place)).put(b"x"),
    "state": lambda place: write_atomically(place / "run.json", "{}"),
    "tasks": lambda place: list(import_rows([], place, None, lambda task: unproven(task, ""))),
}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o277])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.parametrize("what", ["objects", "state", "tasks"])
def test_new_folders_are_private_for_every_umask(what: str, umask: int, tmp_path: Path) -> None:
    place = tmp_path / "above" / what

    MAKERS[what](place)

    assert mode(place) == mode(place.parent) == 0o700


def test_existing_folder_keeps_its_mode_and_a_file_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2770)
    (tmp_path / "file").touch()

    make_private(shared / "mine")

    assert mode(shared) == 0o2770
    assert mode(shared / "mine") == 0o700
    with pytest.raises(OSError, match="file"):
        make_private(tmp_path / "file")


def test_shared_object_store_is_reported_and_keeps_its_mode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o755)

    ObjectStore(str(tmp_path)).put(b"x")

    assert mode(tmp_path) == 0o755
    assert "objects_open_to_others" in capsys.readouterr().out


def test_open_state_directory_is_made_private_and_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("services", "runs", "services.wiped-1"):
        (tmp_path / ".rollcall" / name).mkdir(parents=True)
    for path in [tmp_path / ".rollcall", *(tmp_path / ".rollcall").iterdir()]:
        path.chmod(0o755)

    connection.settings()
    connection.settings()

    assert mode(tmp_path / ".rollcall") == mode(tmp_path / ".rollcall" / "runs") == 0o700
    said = capsys.readouterr().err
    assert said.count("was open to other users; now 0700") == 3


def test_folder_with_foreign_files_keeps_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "rollcall.compose.settings.load_settings", lambda: Settings(state_dir=tmp_path)
    )
    (tmp_path / "runs").mkdir()
    (tmp_path / "thesis").mkdir()
    tmp_path.chmod(0o755)

    connection.settings()

    assert mode(tmp_path) == 0o755
    assert mode(tmp_path / "runs") == 0o700
    assert not tighten(tmp_path / "nowhere")
