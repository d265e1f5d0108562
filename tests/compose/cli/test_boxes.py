"""`rollcall boxes` and `rollcall images`: what is said of drivers and images on this host."""

import json
from pathlib import Path

from tests.support.command_line import afresh, refused


def test_every_driver_says_what_holds_its_boxes_and_what_it_lacks(tmp_path: Path) -> None:
    nowhere = {"DOCKER_HOST": f"unix://{tmp_path}/no.socket"}

    told = afresh("boxes", "--drivers", cwd=tmp_path, **nowhere).stdout
    drivers = json.loads(afresh("boxes", "--drivers", "--json", cwd=tmp_path, **nowhere).stdout)

    assert [driver["name"] for driver in drivers] == ["bubblewrap", "docker", "local"]
    assert drivers[1]["unavailable"]
    assert "lacks    isolation" in told
    assert "opens no box here: " in told


def test_images_are_listed_built_by_name_and_collected(tmp_path: Path) -> None:
    here = {"ROLLCALL_IMAGES": str(tmp_path)}

    told = afresh("images", "list", cwd=tmp_path, **here).stdout
    assert "the programs of this host, read-only" in told
    assert told.endswith(f"in {tmp_path}\n")
    assert afresh("images", "list", "--json", cwd=tmp_path, **here).stdout == "[]\n"
    assert "--with" in refused(afresh("images", "build", "bass", cwd=tmp_path, **here))
    assert "no size" in refused(afresh("images", "gc", "--keep", "lots", cwd=tmp_path, **here))
    assert afresh("images", "gc", cwd=tmp_path, **here).stdout == "nothing to remove\n"
