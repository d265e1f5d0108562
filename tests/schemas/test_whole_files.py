"""What is written is there whole or not at all."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from schemas.whole_files import appearing, write_whole


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.json"

    write_whole(path, "first")
    write_whole(path, b"second")

    assert path.read_bytes() == b"second"
    assert os.listdir(path.parent) == ["a.json"]


@pytest.mark.parametrize("folder", [True, False], ids=["a folder", "a file"])
def test_what_could_not_be_finished_leaves_what_was_there(tmp_path: Path, folder: bool) -> None:
    path = tmp_path / "out"
    path.write_text("before")

    with suppress(KeyError), appearing(path) as hidden:
        file = hidden
        if folder:
            hidden.mkdir()
            file = hidden / "half"
        file.write_text("half")
        raise KeyError

    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["out"]


def test_a_folder_does_not_take_the_place_of_one_that_holds_something(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.mkdir()
    (path / "kept").touch()

    with pytest.raises(OSError, match="not empty"), appearing(path) as hidden:
        hidden.mkdir()

    assert os.listdir(tmp_path) == ["out"]
    assert os.listdir(path) == ["kept"]
