"""`rollcall weights`: the stored files, their users, and the files that may be removed."""

import json
import re
from pathlib import Path

import orjson
import pytest

from rollcall.compose.runs.run_folder import RUN_FILE
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import RolloutRequest, Task
from rollcall.trainer.checkpoints.resume_points import resume_points
from tests.support.command_line import call
from tests.support.tiny_run import RECIPE, World

DELTAS = RECIPE.replace(
    "[policy]\n", '[policy]\npublish = "bfloat16"\nweights = "delta"\nfull_every = 2\n'
).replace("steps = 4", "steps = 4\nlr = 1e-6\ncheckpoint_keep_every = 0")


def begun(world: World) -> str:
    """The run's folder, as commands find it."""
    folder = world.folder
    body = {"run_id": folder.run_id, "policy_id": folder.policy_id, "seed": 3, "starts": []}
    (folder.directory / RUN_FILE).write_bytes(orjson.dumps(body))
    return str(folder.directory)


def test_files_are_listed_with_their_needs_during_and_after_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path, DELTAS)
    run = begun(world)
    call(world.factory, "weights", run)
    assert "0 files in" in capsys.readouterr().out
    trainer = world.trainer()
    world.train(trainer, steps=2)
    capsys.readouterr()

    call(world.factory, "weights", run, "--json")

    found = json.loads(capsys.readouterr().out)
    assert [(file["version"], file["kind"], file["base"]) for file in found["files"]] == [
        (0, "full", -1),
        (1, "delta", 0),
        (2, "full", -1),
    ]
    newest = found["files"][-1]
    assert newest["precision"] == "bfloat16"
    assert {"newest", "young", "checkpoint"} <= set(newest["needed_by"])
    reasons = {reason for file in found["files"] for reason in file["needed_by"]}
    assert any(reason.startswith("open ") for reason in reasons)
    assert "base of 1" in found["files"][0]["needed_by"]
    sizes = sum(path.stat().st_size for path in (world.folder.directory / "weights").iterdir())
    assert (found["size_bytes"], found["may_go_bytes"]) == (sizes, 0)

    # When all has ended and ten minutes of the log have passed
    world.train(trainer)
    wall = world.log.wall
    world.log.wall = lambda: wall() + 3600.0
    [*_, last] = world.log.all(world.topics.versions)
    world.log.append(world.topics.versions, b"somebody else", last.value)
    capsys.readouterr()
    call(world.factory, "weights", run)

    said = capsys.readouterr().out
    assert "delta on 2" in said
    rows = {line.split("│")[1].strip(): line for line in said.splitlines() if "│" in line}
    assert [name for name, row in rows.items() if "none: may be removed" in row] == ["1"]
    assert "replayed" in rows["0"]  # by who goes on from the oldest of three checkpoints
    assert "3,60" in rows["0"]  # seconds, by the clock of the log
    assert "newest, checkpoint" in rows["4"]


def test_unknown_run_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    with pytest.raises(Refused, match="no run 'nobody'"):
        call(world.factory, "weights", "nobody")


def test_weights_for_replay_are_listed_as_in_the_newest_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path, RECIPE.replace("steps = 4", "steps = 4\nreplay_ratio = 0.5"))
    run = begun(world)
    world.train(world.trainer())
    held = resume_points(world.folder.directory / "checkpoints")[0].replayed
    assert held
    late = RolloutRequest("late", Task(), policy_id=world.folder.policy_id, policy_version=1)
    world.ask(late)  # and nobody of the agents group takes a turn
    capsys.readouterr()

    call(world.factory, "weights", run, "--json")

    files = json.loads(capsys.readouterr().out)["files"]
    needed = {file["version"]: " ".join(file["needed_by"]) for file in files}
    told = {
        version: int(word.group(1))
        for version, text in needed.items()
        if (word := re.search(r"replayed (\d+)", text))
    }
    assert [version for version, text in needed.items() if "requested 1" in text] == [1]
    assert told
    assert max(told.values()) <= len(held)
    assert sum(told.values()) >= len(held)
