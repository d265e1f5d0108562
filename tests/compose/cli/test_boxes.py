"""`rollcall boxes` and `rollcall images`: reports on drivers and images of this host."""

import json
from pathlib import Path

import pytest

from tests.support.command_line import afresh, refused


def test_every_driver_reports_its_isolation_and_its_gaps(tmp_path: Path) -> None:
    nowhere = {"DOCKER_HOST": f"unix://{tmp_path}/no.socket"}

    found = afresh("boxes", "--drivers", cwd=tmp_path, **nowhere)
    told = found.stdout
    drivers = json.loads(afresh("boxes", "--drivers", "--json", cwd=tmp_path, **nowhere).stdout)

    assert [driver["name"] for driver in drivers] == ["bubblewrap", "docker", "local"]
    assert drivers[1]["unavailable"]
    assert found.returncode == int(bool(drivers[0]["unavailable"]))
    assert "lacks    isolation" in told
    assert "opens no box here: " in told


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_missing_isolating_driver_is_reported_with_exit_code_1(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    nothing = {"DOCKER_HOST": f"unix://{tmp_path}/no.socket", "PATH": str(tmp_path / "bin")}

    done = afresh("boxes", "--drivers", *words, cwd=tmp_path, **nothing)

    assert done.returncode == 1
    assert "no driver on this host isolates boxes. Run `apt-get install bubblewrap`" in done.stderr
    assert done.stderr.count("\n") == 1
    assert "local" in done.stdout


def test_images_are_listed_built_by_name_and_collected(tmp_path: Path) -> None:
    here = {"ROLLCALL_IMAGES": str(tmp_path)}

    told = afresh("images", "list", cwd=tmp_path, **here).stdout
    assert "the programs of this host, read-only" in told
    assert told.endswith(f"in {tmp_path}\n")
    assert afresh("images", "list", "--json", cwd=tmp_path, **here).stdout == "[]\n"
    assert "--with" in refused(afresh("images", "build", "bass", cwd=tmp_path, **here))
    assert "no size" in refused(afresh("images", "gc", "--keep", "lots", cwd=tmp_path, **here))
    assert afresh("images", "gc", cwd=tmp_path, **here).stdout == "nothing to remove\n"
