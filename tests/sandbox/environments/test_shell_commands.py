"""The shell as an environment: observations, ends of episodes, refused configs."""

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from rollcall.sandbox.environment import (
    Observation,
    WaitingEnvironment,
    is_replayable,
    kind_of,
    make_environment,
)
from rollcall.sandbox.sessions import Sessions
from rollcall.schemas.errors import WorkFailed
from rollcall.schemas.messages import EnvironmentStep, EnvironmentStepped
from tests.support.shell_page import count_red, shell_task

WORD = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def made(**config: Any) -> WaitingEnvironment:
    environment = make_environment("shell", json.dumps({"box": "local", **config}))
    return cast(WaitingEnvironment, environment)


def episode(*actions: str, **config: Any) -> list[Observation]:
    """All observations of a shell, the first one included."""

    async def whole() -> list[Observation]:
        environment = made(**config)
        try:
            seen = [await environment.open(7)]
            return seen + [await environment.step(action) for action in actions]
        finally:
            await environment.close()

    return asyncio.run(whole())


def test_observation_shows_the_exit_code_followed_by_the_output() -> None:
    _, *seen = episode("echo a; echo b >&2", "false", "printf x; exit 3", "sleep 99", timeout_s=1.0)

    assert [each.text for each in seen] == [
        "exit code 0\na\nb\n",
        "exit code 1\n",
        "exit code 3 and the shell ended; the next command begins in a new one\nx",
        "timed out after 1 s and was killed; the next command begins in a new shell\n",
    ]
    assert [each.info["exit_code"] for each in seen] == [0, 1, 3, -1]
    assert [each.info["timed_out"] for each in seen] == [False, False, False, True]
    assert not any(each.terminated or each.truncated or each.reward for each in seen)


def test_first_observation_shows_instruction_and_files() -> None:
    [bare], [told] = episode(), episode(instruction="Mend it.", files={"b": "", "a/c": ""})

    assert bare.text.startswith("Each message is run as a command by /bin/sh in ~, which is empty.")
    assert told.text.startswith("Mend it.\n\nEach message is run")
    assert "which holds a b." in told.text
    assert told.text.endswith(f"print {WORD} as the first line.")


def test_configured_files_are_present_with_fixed_timestamps(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "run").write_text("#!/bin/sh\necho copied\n")
    (tmp_path / "deep" / "run").chmod(0o755)
    (tmp_path / "link").symlink_to("deep")
    (tmp_path / "both").write_text("from the directory")
    files = {"both": "from the config", "new/tool": "#!/bin/sh\necho written\n", "☃ ": "x"}

    config: dict[str, Any] = {"path": str(tmp_path), "files": files}
    _, said, times, again = episode(
        "link/run; new/tool; cat both; ls", "ls -lR --time-style=+%s", "ls *", **config
    )

    assert (
        said.text == "exit code 0\ncopied\nwritten\nfrom the config" + "both\ndeep\nlink\nnew\n☃ \n"
    )
    assert " 946684800 " in times.text
    assert times == episode("ls", "ls -lR --time-style=+%s", **config)[2]
    assert again.info["exit_code"] == 0


@pytest.mark.parametrize(
    ("action", "ends"),
    [
        (f"echo {WORD}; echo the diff", True),
        (f"printf '\\n  {WORD}\\t\\n'", True),
        (f"echo {WORD}; false", False),
        (f"echo first; echo {WORD}", False),
        (f"echo {WORD}x", False),
        (WORD, False),
    ],
)
def test_finish_word_in_the_first_output_line_ends_the_episode(action: str, ends: bool) -> None:
    seen = episode(action)[1]

    assert (seen.terminated, seen.truncated, seen.reward) == (ends, False, 0.0)


def test_episode_is_truncated_after_max_steps() -> None:
    _, *seen = episode("echo 1", "echo 2", max_steps=2, check="true")

    assert [(each.truncated, each.reward) for each in seen] == [(False, 0.0), (True, 1.0)]


@pytest.mark.parametrize(
    ("before", "check", "reward", "code"),
    [
        ("touch done", "test -e done", 1.0, 0),
        (":", "test -e done", 0.0, 1),
        ("test() { true; }; cd /; exec 1>&-", "test -e done", 0.0, 1),
        ("touch done; exit", "test -e done", 1.0, 0),
        (":", "sleep 99", 0.0, -1),
        (":", "kill -9 $$", 0.0, 137),
        ("rm -rf ~", "pwd", 1.0, 0),
    ],
)
def test_reward_is_the_check_result_from_a_separate_shell(
    before: str, check: str, reward: float, code: int
) -> None:
    seen = episode(before, f"echo {WORD}", check=check, check_timeout_s=1.0)[2]

    assert (seen.terminated, seen.reward, seen.info["check_exit_code"]) == (True, reward, code)


def test_memory_is_limited_as_configured() -> None:
    bounded, unbounded = (
        episode("ulimit -v", **config)[1].text for config in ({}, {"limits": {"memory_bytes": 0}})
    )

    assert (bounded, unbounded) == (f"exit code 0\n{4 << 20}\n", "exit code 0\nunlimited\n")


def test_elided_output_is_marked_and_counted() -> None:
    seen = episode("seq 1 1000", head_chars=4, tail_chars=5)[1]

    assert seen.text == "exit code 0\n1\n2\n\n[3884 characters left out]\n1000\n"
    assert seen.info["elided_chars"] == 3884


def test_config_can_make_an_episode_non_replayable() -> None:
    assert kind_of("shell").waits
    assert [
        is_replayable("shell", text)
        for text in ('{"box": "local"}', '{"box": "local", "replay": false}')
    ] == [True, False]
    assert made().replayable
    assert not made(replay=False).replayable


def test_step_before_open_or_after_close_is_refused() -> None:
    async def whole() -> None:
        environment = made()
        with pytest.raises(WorkFailed, match="before it was opened"):
            await environment.step("echo")
        await environment.open(1)
        await environment.open(1)
        await environment.close()
        with pytest.raises(WorkFailed, match="before it was opened"):
            await environment.step("echo")

    asyncio.run(whole())


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"box": "lokal"}, "did you mean 'local'"),
        ({"box": ""}, "unknown box ''; known are"),
        ({"box": "local", "time_s": 3}, "'time_s'; it takes box"),
        ({"box": "local", "timeout_s": 0}, "timeout_s: .*greater than 0, found '0'"),
        ({"box": "local", "timeout_s": "3"}, "timeout_s: .*valid number"),
        ({"box": "local", "timeout_s": float("nan")}, "timeout_s: "),
        ({"box": "local", "max_steps": -1}, "max_steps: "),
        ({"box": "local", "files": {"../up": ""}}, "'../up' leads nowhere below"),
        ({"box": "local", "files": {"a/../../up": ""}}, "leads nowhere below"),
        ({"box": "local", "files": {"/etc/up": ""}}, "'/etc/up' is an absolute path"),
        ({"box": "local", "files": {"": ""}}, "leads nowhere below"),
        ({"box": "local", "files": {"a//b": ""}}, "leads nowhere below"),
        ({"box": "local", "files": {"a\0b": ""}}, "is no name"),
        ({"box": "local", "files": {"x" * 256: ""}}, "at most 255 bytes"),
        ({"box": "local", "files": {"\ud800": ""}}, "cannot carry"),
        ({"box": "local", "files": {"a": 1}}, "files.a: .*valid string"),
        ({"box": "local", "files": {"a": "x" * (17 << 20)}}, "`path` names a directory"),
        ({"box": "local", "path": "here"}, "no absolute path of a directory"),
        ({"box": "local", "path": "/no/such/place"}, "no absolute path of a directory"),
        ({"box": "local", "files": {f"{'x/' * 3000}y": ""}}, "1024 in all"),
        ({"box": "local", "env": {"A": 1}}, "env.A: .*valid string"),
        ({"box": "local", "env": {"A": "\0"}}, "'A' is none"),
        ({"box": "local", "env": {"A=B": ""}}, "'A=B' is none"),
        ({"box": "local", "env": {"A": "x" * 200_000}}, "16,384 can be"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_invalid_shell_config_is_refused_when_it_is_read(
    config: dict[str, Any], found: str
) -> None:
    with pytest.raises(WorkFailed, match=found) as failed:
        make_environment("shell", json.dumps(config))

    assert (failed.value.code, failed.value.retriable) == ("bad_config", False)
    assert len(str(failed.value)) < 1200


def test_file_below_a_file_is_refused_on_open() -> None:
    with pytest.raises(WorkFailed, match="'a/b' cannot be written") as failed:
        episode("echo", files={"a": "", "a/b": ""})

    assert (failed.value.code, failed.value.retriable) == ("bad_config", False)


def test_oversized_directory_or_one_with_special_files_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as large:
        large.truncate(1 << 30)
    with pytest.raises(WorkFailed, match="too much for a box") as failed:
        episode(path=str(tmp_path))
    assert failed.value.code == "bad_config"

    (tmp_path / "large").unlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(WorkFailed, match="neither a file") as failed:
        episode(path=str(tmp_path))
    assert failed.value.code == "bad_config"


def steps(*actions: str) -> list[EnvironmentStep]:
    """The commands of one rollout, the last of them with its history."""
    config = json.dumps({"box": "local", "timeout_s": 2})
    place = EnvironmentStep(
        "r1", 1, 0, 0, b"reset", b"", 0, 0, "reset", "shell", "main", config, 7
    )  # fmt: skip
    told = [
        replace(place, kind="step", command_id=str(index).encode(), index=index, action=action)
        for index, action in enumerate(actions)
    ]
    return [place, *told[:-1], replace(told[-1], history=actions[:-1])]


def test_rebuilt_shell_session_shows_the_same_observation() -> None:
    commands = steps("x=1; cd /", "touch ~/a; kill -9 $$", "y=2; cd ~; sleep 9", "ls; echo $x $y")

    async def shown(some: list[EnvironmentStep]) -> EnvironmentStepped:
        sessions = Sessions(make_environment)  # type: ignore[arg-type]
        try:
            return [await sessions.handle(step) for step in some][-1]
        finally:
            await sessions.close()

    lived, rebuilt = asyncio.run(shown(commands)), asyncio.run(shown(commands[-1:]))

    assert lived == rebuilt
    assert lived.text == "exit code 0\na\n\n"


def test_task_on_the_documentation_page_is_solved_by_its_policy() -> None:
    told, answer = shell_task(), count_red()

    async def whole() -> list[Observation]:
        made = make_environment(told["environment"], json.dumps(told["environment_config"]))
        environment = cast(WaitingEnvironment, made)
        try:
            seen = [await environment.open(1)]
            while not seen[-1].terminated and len(seen) < 9:
                conversation = (
                    f"<|im_start|>user\n{seen[-1].text}<|im_end|>\n<|im_start|>assistant\n"
                )
                seen.append(await environment.step(answer(conversation)))
            return seen
        finally:
            await environment.close()

    assert [seen.reward for seen in asyncio.run(whole())] == [0.0, 0.0, 1.0]
