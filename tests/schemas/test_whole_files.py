"""A file is written completely or not at all."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from rollcall.schemas.atomic_files import atomic_path, write_atomically


def test_a_replaced_file_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.json"

    write_atomically(path, "first")
    write_atomically(path, b"second")

    assert path.read_bytes() == b"second"
    assert os.listdir(path.parent) == ["a.json"]


@pytest.mark.parametrize("folder", [True, False], ids=["a folder", "a file"])
def test_an_interrupted_write_keeps_the_old_content(tmp_path: Path, folder: bool) -> None:
    path = tmp_path / "out"
    path.write_text("before")

    with suppress(KeyError), atomic_path(path) as hidden:
        file = hidden
        if folder:
            hidden.mkdir()
            file = hidden / "half"
        file.write_text("half")
        raise KeyError

    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["out"]


def test_a_folder_does_not_replace_a_folder_with_content(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.mkdir()
    (path / "kept").touch()

    with pytest.raises(OSError, match="not empty"), atomic_path(path) as hidden:
        hidden.mkdir()

    assert os.listdir(tmp_path) == ["out"]
    assert os.listdir(path) == ["kept"]
