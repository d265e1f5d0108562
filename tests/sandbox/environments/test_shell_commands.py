"""The shell as an environment: what is shown, how an episode ends, what is refused."""

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from sandbox.environment import (
    Observation,
    WaitingEnvironment,
    is_replayable,
    kind_of,
    make_environment,
)
from sandbox.sessions import Sessions
from schemas.errors import WorkFailed
from schemas.messages import EnvironmentStep, EnvironmentStepped
from tests.support.shell_page import count_red, shell_task

WORD = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def made(**config: Any) -> WaitingEnvironment:
    environment = make_environment("shell", json.dumps({"box": "local", **config}))
    return cast(WaitingEnvironment, environment)


def episode(*actions: str, **config: Any) -> list[Observation]:
    """All that a shell shows, its opening first."""

    async def whole() -> list[Observation]:
        environment = made(**config)
        try:
            seen = [await environment.open(7)]
            return seen + [await environment.step(action) for action in actions]
        finally:
            await environment.close()

    return asyncio.run(whole())


def test_an_observation_is_how_a_command_ended_and_then_what_it_printed() -> None:
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


def test_the_first_observation_says_what_there_is_to_do_and_to_see() -> None:
    [bare], [told] = episode(), episode(instruction="Mend it.", files={"b": "", "a/c": ""})

    assert bare.text.startswith("Each message is run as a command by /bin/sh in ~, which is empty.")
    assert told.text.startswith("Mend it.\n\nEach message is run")
    assert "which holds a b." in told.text
    assert told.text.endswith(f"print {WORD} as the first line.")


def test_files_and_a_directory_are_there_and_tell_no_time(tmp_path: Path) -> None:
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
def test_the_finish_word_in_the_first_line_ends_an_episode(action: str, ends: bool) -> None:
    seen = episode(action)[1]

    assert (seen.terminated, seen.truncated, seen.reward) == (ends, False, 0.0)


def test_an_episode_is_cut_off_after_its_steps() -> None:
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
def test_a_check_in_a_shell_of_its_own_is_the_reward(
    before: str, check: str, reward: float, code: int
) -> None:
    seen = episode(before, f"echo {WORD}", check=check, check_timeout_s=1.0)[2]

    assert (seen.terminated, seen.reward, seen.info["check_exit_code"]) == (True, reward, code)


def test_memory_is_bounded_as_the_config_says() -> None:
    bounded, unbounded = (
        episode("ulimit -v", **config)[1].text for config in ({}, {"memory_bytes": 0})
    )

    assert (bounded, unbounded) == (f"exit code 0\n{4 << 20}\n", "exit code 0\nunlimited\n")


def test_what_is_left_out_of_an_output_is_said_and_counted() -> None:
    seen = episode("seq 1 1000", head_chars=4, tail_chars=5)[1]

    assert seen.text == "exit code 0\n1\n2\n\n[3884 characters left out]\n1000\n"
    assert seen.info["elided_chars"] == 3884


def test_an_episode_that_may_not_be_lived_again_says_so() -> None:
    assert kind_of("shell").waits
    assert [
        is_replayable("shell", text)
        for text in ('{"box": "local"}', '{"box": "local", "replay": false}')
    ] == [True, False]
    assert made().replayable
    assert not made(replay=False).replayable


def test_a_step_before_the_opening_or_after_the_close_is_refused() -> None:
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
def test_a_config_that_makes_no_sense_is_refused_when_it_is_read(
    config: dict[str, Any], found: str
) -> None:
    with pytest.raises(WorkFailed, match=found) as failed:
        make_environment("shell", json.dumps(config))

    assert (failed.value.code, failed.value.retriable) == ("bad_config", False)
    assert len(str(failed.value)) < 1200


def test_a_file_below_a_file_is_refused_at_the_opening() -> None:
    with pytest.raises(WorkFailed, match="'a/b' cannot be written") as failed:
        episode("echo", files={"a": "", "a/b": ""})

    assert (failed.value.code, failed.value.retriable) == ("bad_config", False)


def test_a_directory_that_is_too_much_or_holds_no_files_is_refused(tmp_path: Path) -> None:
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


def test_a_lost_session_is_rebuilt_and_shows_what_it_would_have_shown() -> None:
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


def test_the_task_of_the_page_is_solved_by_the_policy_beside_it() -> None:
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
