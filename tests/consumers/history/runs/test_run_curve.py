"""`rollcall runs` and `rollcall curve` from records alone, on a log in memory."""

import csv
import json
import re
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from rollcall.compose.cluster import Cluster
from rollcall.compose.conductor import curve_files
from rollcall.compose.conductor.curve_files import print_chart
from rollcall.compose.conductor.live_panel import BARS, line, render
from rollcall.compose.conductor.run_summary import figures_of, figures_of_others
from rollcall.compose.conductor.run_watch import RunWatch
from rollcall.compose.runs import listing, run_folder
from rollcall.compose.runs.recipe import load_recipe
from rollcall.compose.runs.run_folder import RunFolder
from rollcall.compose.settings import Settings
from rollcall.compose.workers.run_trainer import sole_trainer
from rollcall.consumers.heldout import MARK
from rollcall.consumers.history.runs.run_curve import HELD_OUT, RunCurve, curve_of
from rollcall.consumers.history.runs.run_figures import RunReader
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import RolloutRequest, ScoredTrajectory, Task, TrainStep, Trajectory
from tests.support.command_line import addresses, refused, rollcall
from tests.support.memory_cluster import MemoryCluster
from tests.support.rig import PREFIX

RUN = "lake-20260101-000000-s7"
BEFORE = 0
"""The version of the starting weights."""


@pytest.fixture
def cluster(tmp_path: Path) -> MemoryCluster:
    return MemoryCluster(settings=Settings(prefix=PREFIX, state_dir=tmp_path / "state"))


def step(number: int, version: int, parent: int, run: str = RUN) -> TrainStep:
    metrics = {"reward_mean": number / 10, "loss": -number / 4, "entropy": 1.5, "grad_norm": 2.0}
    return TrainStep(run, run, number, version, parent, (), metrics)


def train(cluster: MemoryCluster, *steps: TrainStep) -> None:
    topic = cluster.topics.train_steps
    for each in steps:
        cluster.log.append(topic, b"p", cluster.codec.encode(topic, each))


def evaluate(
    cluster: MemoryCluster, version: int, totals: Many[float], run: str = RUN, size: int = 2,
    scoring_id: str = "default",
) -> None:  # fmt: skip
    """Write held-out results of a version, and one of training that is none."""
    topic = cluster.topics.scored
    group = f"{run}{MARK}{version}"
    for seed, total in enumerate([*totals, 1.0]):
        held_out = seed < len(totals)
        key = group if held_out else f"{run}/draw/{version}"
        asked = RolloutRequest(
            f"{key}/{seed}", Task(), run_id=run, group_id=key, group_size=size,
            purpose="evaluate" if held_out else "train",
        )  # fmt: skip
        ended = Trajectory(
            asked.rollout_id, 1, "finished", asked, (), (), (), 0, 0, 0, 0, 0, 0, 0, 0
        )
        scored = ScoredTrajectory(scoring_id, ended, (), total, "t", 0, 0)
        cluster.log.append(topic, key.encode(), cluster.codec.encode(topic, scored))


def read(cluster: MemoryCluster, name: str = RUN) -> RunCurve:
    own = run_folder.find_or_none(cluster.settings.state(), name)
    others = {each.part: each.held_out_rule() for each in own.others()} if own else {}
    rule = own.held_out_rule() if own else None
    return curve_of(cluster, own.name if own else name, rule, others)


TIMERS = {"execution_s": {"p50": 1.5, "p95": 2.0}}
SUMMARY = {"success_after": 0.875, "timers": TIMERS}


def folder(
    cluster: MemoryCluster,
    run_id: str = RUN,
    *,
    finished: bool = False,
    recipe: str = "lake-any-start",
) -> Path:
    """A run's folder as `runs.begin` leaves it."""
    _, text = load_recipe(recipe)
    made = cluster.settings.state() / "runs" / run_id
    made.mkdir(parents=True)
    (made / run_folder.RECIPE_FILE).write_text(text)
    body = {"run_id": run_id, "policy_id": run_id, "seed": 7, "starts": []}
    (made / run_folder.RUN_FILE).write_text(json.dumps(body))
    if finished:
        (made / run_folder.SUMMARY_FILE).write_text(json.dumps(SUMMARY))
    return made


def test_a_curve_is_read_from_the_log_without_the_runs_folder(cluster: MemoryCluster) -> None:
    evaluate(cluster, BEFORE, [0.0, 0.0])
    train(cluster, step(1, 1, BEFORE), step(1, 1, 0, "other"), step(2, 2, 1))
    evaluate(cluster, 2, [1.0, 0.5])
    evaluate(cluster, 2, [1.0, 1.0], "other")

    series = read(cluster).series()

    assert series["reward"] == [(1, 0.1), (2, 0.2)]
    assert series["length"] == []
    assert series[HELD_OUT] == [(0, 0.0), (2, 0.5)]


PAIR = "solver-verifier-20260101-000000-s7"


@pytest.fixture
def pair(cluster: MemoryCluster) -> tuple[RunFolder, RunFolder]:
    """A run of two policies, two steps in: one is right twice of four times, the other once."""
    text = (folder(cluster, PAIR, recipe="solver-verifier") / run_folder.RECIPE_FILE).read_text()
    path = cluster.settings.state() / "runs" / PAIR / run_folder.RECIPE_FILE
    held_out = "seeds = [10_000_000, 10_000_004]"
    path.write_text(re.sub(r"(?m)^seeds = \[10_000_000, .*", held_out, text))
    solver = run_folder.load(path.parent)
    [verifier] = solver.others()
    verifier.directory.mkdir(parents=True)
    for part, totals in ((solver, [1.0, 1.0, 0.0, 0.0]), (verifier, [0.0, 0.0, 1.0, 0.0])):
        train(cluster, replace(step(1, 1, BEFORE, PAIR), policy_id=part.policy_id))
        scoring_id = part.recipe.scoring_id
        evaluate(cluster, BEFORE, [0.0] * 4, PAIR, size=4, scoring_id=scoring_id)
        evaluate(cluster, 1, totals, PAIR, size=4, scoring_id=scoring_id)
    return solver, verifier


def test_each_policy_of_a_run_has_its_own_held_out_success(
    cluster: MemoryCluster, pair: tuple[RunFolder, RunFolder], tmp_path: Path
) -> None:
    solver, verifier = pair

    curve = read(cluster, PAIR)

    assert curve.series()[HELD_OUT] == [(0, 0.0), (1, 0.5)]
    assert curve.series()[f"{HELD_OUT}, verifier"] == [(0, 0.0), (1, 0.25)]
    assert read(cluster, verifier.name).series()[HELD_OUT] == [(0, 0.0), (1, 0.25)]
    assert read(cluster, str(verifier.directory)).others == {}
    assert curve.plain()["held_out_of_others"]["verifier"][1] == {"version": 1, "success": 0.25}
    listed = {run.run_id: run.success for run in listing.list_runs(cluster)}
    assert listed == {solver.name: 0.5, verifier.name: 0.25}


def test_the_files_of_a_curve_include_the_other_policies(
    cluster: MemoryCluster, pair: tuple[RunFolder, RunFolder], tmp_path: Path
) -> None:
    curve = read(cluster, PAIR)

    lines, picture, tensorboard = (tmp_path / name for name in ("c.csv", "c.png", "events"))
    written = curve_files.write_files(curve, picture=picture, lines=lines, tensorboard=tensorboard)

    assert len(written) == 3
    with lines.open() as read_lines:
        table = list(csv.DictReader(read_lines))
    assert [(row["step"], row["held_out_success_verifier"]) for row in table] == [
        ("0", "0.0"), ("1", "0.25"),
    ]  # fmt: skip
    assert b"held_out/success_verifier" in next(written[2].iterdir()).read_bytes()


def test_a_run_in_progress_shows_each_policys_learning(
    cluster: MemoryCluster, pair: tuple[RunFolder, RunFolder]
) -> None:
    solver, _ = pair
    figures, others = figures_of(solver), figures_of_others(solver)
    reader = RunReader(cluster, figures, {}, others.values())
    while reader.poll(0.0, 0.0):
        pass

    shown = Console(width=200, record=True)
    watch = RunWatch(steps=9, patience=9)
    shown.print(render(figures, {}, 0.0, watch, others))

    said = line(figures, 0.0, watch, others)
    assert "held-out v1 0.500  verifier: reward +0.100  held-out v1 0.250" in said
    assert "v0 0.000  v1 0.250" in shown.export_text()


def test_an_incomplete_evaluation_is_not_shown(cluster: MemoryCluster) -> None:
    train(cluster, step(1, 1, BEFORE))
    evaluate(cluster, 1, [1.0], size=2)

    assert read(cluster).heldout == []


def test_steps_repeated_after_a_restart_are_not_shown(cluster: MemoryCluster) -> None:
    train(cluster, step(1, 1, 0), step(2, 2, 1), step(3, 3, 2), step(2, 4, 1), step(3, 5, 4))

    curve = read(cluster)

    assert [(each.step, each.version) for each in curve.steps] == [(1, 1), (2, 4), (3, 5)]
    assert curve.abandoned == 2


def test_an_unknown_or_empty_run_is_refused(cluster: MemoryCluster) -> None:
    with pytest.raises(Refused, match="unknown run 'nobody'"):
        read(cluster, "nobody")
    train(cluster, step(1, 1, 0))
    with pytest.raises(Refused, match=f"did you mean '{RUN}'"):
        read(cluster, RUN[:-1])
    folder(cluster, "begun")
    with pytest.raises(Refused, match="no held-out result"):
        read(cluster, "begun")


def test_the_curve_is_written_as_png_csv_and_tensorboard_events(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    evaluate(cluster, BEFORE, [0.0, 0.0])
    train(cluster, step(1, 1, BEFORE), step(2, 2, 1))
    evaluate(cluster, 2, [1.0, 1.0])
    curve = read(cluster)

    curve_files.draw(curve, tmp_path / "new" / "curve.png")
    curve_files.write_csv(curve, tmp_path / "curve.csv")
    for _ in range(2):
        events = curve_files.write_tensorboard(curve, tmp_path / "board")

    assert (tmp_path / "new" / "curve.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "curve.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["step"], row["version"], row["held_out_success"]) for row in rows] == [
        ("0", "0", "0.0"),
        ("1", "1", ""),
        ("2", "2", "1.0"),
    ]
    assert [row["reward_mean"] for row in rows] == ["", "0.1", "0.2"]
    assert events == tmp_path / "board" / RUN
    [written] = events.iterdir()
    assert scalars(written) == {
        ("train/reward_mean", 1, 0.1), ("train/reward_mean", 2, 0.2),
        ("held_out/success", 0, 0.0), ("held_out/success", 2, 1.0),
    }  # fmt: skip


def scalars(path: Path) -> set[tuple[str, int, float]]:
    """Tag, step and value of the events of some series, as TensorBoard would read them."""
    from tensorboardX.proto.event_pb2 import Event

    data, found = path.read_bytes(), set()
    while data:
        size = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + size])
        data = data[16 + size :]
        for value in event.summary.value:
            if value.tag in ("train/reward_mean", "held_out/success"):
                found.add((value.tag, event.step, round(value.simple_value, 6)))
    return found


def test_an_unwritable_path_is_refused(cluster: MemoryCluster, tmp_path: Path) -> None:
    train(cluster, step(1, 1, 0))
    (tmp_path / "file").write_text("")

    with pytest.raises(Refused, match="cannot write"):
        curve_files.write_csv(read(cluster), tmp_path / "file" / "curve.csv")


def test_the_curve_is_a_text_chart_if_no_file_is_given(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    train(cluster, *(step(number, number, number - 1) for number in range(1, 9)))

    print_chart(read(cluster), Console(width=120))

    shown = capsys.readouterr().out
    assert BARS in shown
    assert "8 steps to version 8" in shown


def test_runs_are_listed_with_their_state_in_the_log(cluster: MemoryCluster) -> None:
    folder(cluster, "a-finished", finished=True)
    held = folder(cluster, "b-training")
    folder(cluster, "c-stopped")
    train(cluster, step(1, 1, 0, "b-training"), step(2, 2, 1, "b-training"), step(1, 1, 0, RUN))
    evaluate(cluster, 1, [1.0, 0.0])

    with sole_trainer(held, lambda: False):
        found = listing.list_runs(cluster)  # type: ignore[arg-type]

    assert {
        run.run_id: (run.recipe, run.steps, run.version, run.success, run.state) for run in found
    } == {
        "a-finished": ("lake-any-start", 0, None, 0.875, "finished"),
        "b-training": ("lake-any-start", 2, 2, None, "training"),
        "c-stopped": ("lake-any-start", 0, None, None, "stopped"),
        RUN: ("", 1, 1, 0.5, "elsewhere"),
    }
    assert found[-1].run_id == RUN
    assert [run.timers for run in found] == [TIMERS, {}, {}, {}]


@pytest.mark.broker
def test_the_command_line_lists_runs_and_writes_curves(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster("p")
    publisher, topic = cluster.log.publisher(), cluster.topics.train_steps
    for each in (step(1, 1, 0), step(2, 2, 1)):
        publisher.send(topic, "p", cluster.codec.encode(topic, each))
    assert publisher.flush(30) == 0
    where = addresses(cluster)

    listed = rollcall("runs", "--json", cwd=tmp_path, **where)
    drawn = rollcall("curve", RUN, "--out", "curves", "--json", cwd=tmp_path, **where)
    unknown = rollcall("curve", RUN[:-1], cwd=tmp_path, **where)

    [run] = json.loads(listed.stdout)
    assert (run["run_id"], run["steps"], run["state"]) == (RUN, 2, "elsewhere")
    assert drawn.returncode == 0, drawn.stderr
    assert [each["version"] for each in json.loads(drawn.stdout)["steps"]] == [1, 2]
    names = sorted(path.name for path in (tmp_path / "curves").iterdir())
    assert names == ["curve.csv", "curve.png"]
    assert f"did you mean '{RUN}'" in refused(unknown)
