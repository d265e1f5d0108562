"""Choice of the box that an agent runs in, and configs that are refused before a start."""

from types import SimpleNamespace
from typing import Any

import pytest

from rollcall.sandbox.agents.agent_box import FINISH_WORD, AgentBox, check_agent_box, where
from rollcall.sandbox.environments.shell_commands import ShellConfig
from rollcall.schemas.errors import Refused


@pytest.mark.parametrize(
    ("config", "environment", "shown", "expected"),
    [
        ({}, "", {}, "none"),
        ({}, "gymnasium", {}, "none"),
        ({}, "shell", {"box": "local"}, "none"),
        ({}, "shell", {}, "beside"),
        ({}, "shell", {"box": "docker"}, "own"),
        ({"box": "none"}, "shell", {"box": "docker"}, "none"),
        ({"box": "own"}, "", {}, "own"),
        ({"box": "task"}, "shell", {}, "task"),
    ],
)
def test_default_agent_box_depends_on_environment_and_config(
    config: Any, environment: str, shown: Any, expected: str
) -> None:
    check_agent_box(config, environment, shown)

    assert where(config, environment, shown) == expected


@pytest.mark.parametrize(
    ("config", "environment", "shown", "said"),
    [
        ({"box": "taks"}, "shell", {}, "task"),
        ({"box": 3}, "shell", {}, "3"),
        ({"box": None}, "shell", {}, "None"),
        ({"box": "task"}, "", {}, "that is one of environment 'shell'"),
        ({"box": "task"}, "gymnasium", {}, "found 'gymnasium'"),
        ({"box": "task"}, "shell", {"box": "local"}, "with box 'local'"),
        ({"mounts": "/opt/mine"}, "", {}, "a list of directories"),
        ({"mounts": [1]}, "", {}, "a list of directories"),
        ({"mounts": ["mine"]}, "", {}, "'mine'"),
        ({"mounts": ["/"]}, "", {}, "'/'"),
        ({"mounts": ["/opt/../etc"]}, "", {}, "'/opt/../etc'"),
        ({"mounts": ["/root/"]}, "", {}, "'/root/'"),
        ({"mounts": ["/a\0b"]}, "", {}, "directories of the worker's"),
    ],
)
def test_invalid_agent_box_config_is_refused(
    config: Any, environment: str, shown: Any, said: str
) -> None:
    with pytest.raises(Refused, match=said):
        check_agent_box(config, environment, shown)


def test_agent_finish_word_equals_the_finish_word_of_the_shell() -> None:
    assert ShellConfig().finish_word == FINISH_WORD


def test_agent_starts_in_the_working_directory_of_its_task() -> None:
    box: Any = SimpleNamespace(workdir="", directory=b"/w", entrance=lambda: {"within": 1})
    assert AgentBox(box, "/tmp/agent").order()["begins_in"] == "/w"

    box.workdir = "/testbed"
    assert AgentBox(box, "/tmp/agent").order() == {
        "within": 1,
        "begins_in": "/testbed",
        "directory": "/tmp/agent",
    }
