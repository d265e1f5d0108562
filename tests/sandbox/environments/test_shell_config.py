"""Box settings of a rollout: accepted values, values of its task, refused values."""

from pathlib import Path
from typing import Any

import pytest

from rollcall.sandbox.boxes.box import BoxLimits
from rollcall.sandbox.environments.shell_config import check_shell, read_config
from rollcall.sandbox.tasks.harbor import HarborTask, read_task
from rollcall.schemas.errors import Refused
from tests.support.task_directories import TASK, write_task

MIB = 1 << 20


def task(directory: Path, environment: str) -> HarborTask:
    """A task with this text in the environment section of `task.toml`."""
    text = TASK.replace("memory_mb = 512\n", environment)
    return read_task(write_task(directory / "sums", {"task.toml": text}))


def test_empty_config_leaves_box_unset_and_uses_default_limits() -> None:
    config = read_config({})

    assert config.box is None
    assert config.spec(None).limits == BoxLimits()
    assert (config.spec(None).image, config.spec(None).env) == ("", {})


def test_image_of_a_task_is_built_unless_config_names_another(tmp_path: Path) -> None:
    directory = write_task(tmp_path / "sums", {"environment/Dockerfile": "FROM base\n"})
    built = read_task(directory)

    spec = read_config({}).spec(built)
    assert (spec.image, spec.build) == (built.image, built.build)
    spec = read_config({"image": "host"}).spec(built)
    assert (spec.image, spec.build) == ("host", None)


def test_configured_limits_become_box_limits() -> None:
    limits = {
        "memory_bytes": 64 * MIB, "processes": 8, "file_bytes": 0, "open_files": 32,
        "disk_bytes": 2 * MIB, "cpus": 1,
    }  # fmt: skip

    assert read_config({"limits": limits}).spec(None).limits == BoxLimits(
        64 * MIB, 8, 0, 32, 2 * MIB, 1.0
    )


@pytest.mark.parametrize(
    ("stated", "asked", "given"),
    [
        ("memory_mb = 512\n", {}, BoxLimits(memory_bytes=512 * MIB)),
        ("memory_mb = 8192\n", {}, BoxLimits(memory_bytes=8192 * MIB)),
        ("memory_mb = 512\n", {"memory_bytes": 64 * MIB}, BoxLimits(memory_bytes=64 * MIB)),
        ("memory_mb = 512\n", {"memory_bytes": 4096 * MIB}, BoxLimits(memory_bytes=512 * MIB)),
        ("memory_mb = 512\n", {"memory_bytes": 0}, BoxLimits(memory_bytes=512 * MIB)),
        ("", {"memory_bytes": 0}, BoxLimits(memory_bytes=0)),
        ("cpus = 2\nstorage_mb = 9\n", {"cpus": 0.5}, BoxLimits(disk_bytes=9 * MIB, cpus=0.5)),
        ("cpus = 2\n", {"processes": 0}, BoxLimits(processes=0, cpus=2)),
        ("", {}, BoxLimits()),
    ],
)
def test_task_limits_hold_unless_config_requests_lower_ones(
    tmp_path: Path, stated: str, asked: dict[str, Any], given: BoxLimits
) -> None:
    found = task(tmp_path, stated)

    assert read_config({"limits": asked}).spec(found).limits == given


def test_request_overrides_image_and_variables_of_the_task(tmp_path: Path) -> None:
    found = task(tmp_path, 'docker_image = "base"\nenv = { A = "1", B = "2" }\n')

    theirs = read_config({}).spec(found)
    ours = read_config({"image": "other:1", "env": {"B": "3"}}).spec(found)

    assert (theirs.image, theirs.env) == ("base", {"A": "1", "B": "2"})
    assert (ours.image, ours.env) == ("other:1", {"A": "1", "B": "3"})


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"box": "dokcer"}, "box: unknown box 'dokcer'; did you mean 'docker'"),
        ({"box": 3}, "box: .*valid string, found '3'"),
        ({"mode": "forever"}, "mode: .*'persistent' or 'ephemeral', found 'forever'"),
        ({"image": "two words"}, "image: "),
        ({"image": "x" * 256}, "image: "),
        ({"image": "x\0"}, "image: "),
        ({"box": "local", "image": "base"}, "'local' is a directory, which has no image; 'base'"),
        ({"limits": 3}, "limits: "),
        ({"limits": {"memry_bytes": 1}}, "'limits.memry_bytes' .* mean 'limits.memory_bytes'"),
        ({"memory": 1}, "'memory' is no key of it"),
        ({"limits": {"memory_bytes": 1}}, "limits: memory_bytes is 1, .* below 16,777,216"),
        ({"limits": {"memory_bytes": -1}}, "limits.memory_bytes: "),
        ({"limits": {"memory_bytes": 1e9}}, "limits.memory_bytes: .*valid integer"),
        ({"limits": {"memory_bytes": 1 << 70}}, "limits.memory_bytes: "),
        ({"limits": {"memory_bytes": True}}, "limits.memory_bytes: "),
        ({"limits": {"memory_bytes": "4GB"}}, "limits.memory_bytes: .*found '4GB'"),
        ({"limits": {"processes": 1}}, "limits: processes is 1"),
        ({"limits": {"open_files": 3}}, "limits: open_files is 3"),
        ({"limits": {"cpus": float("nan")}}, "limits.cpus: "),
        ({"limits": {"cpus": float("inf")}}, "limits.cpus: "),
        ({"limits": {"cpus": 1e-9}}, "limits: cpus is 1e-09"),
        ({"limits": {"disk_bytes": 5}}, "limits: disk_bytes is 5"),
        ({"replay": "yes"}, "replay: "),
        ({"host": {}}, "'host' is no key of it"),
        ({"path": "here"}, "no absolute path"),
        ({"files": {str(n): 1 for n in range(500)}}, "files.0: .*; and 495 more"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_invalid_shell_request_is_refused_in_one_line(config: dict[str, Any], found: str) -> None:
    with pytest.raises(Refused, match=found) as refused:
        check_shell(config)

    assert "environment 'shell'" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 1500


def test_path_is_checked_on_the_worker_and_not_on_the_client() -> None:
    check_shell({"path": "/no/such/place"})

    with pytest.raises(Refused, match="no absolute path of a directory"):
        read_config({"path": "/no/such/place"})
