"""`rollcall export` and `rollcall query` on a log in memory."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rollcall.compose.cli.query import print_csv, print_json, print_table
from rollcall.consumers.audit.audit import audit
from rollcall.consumers.history.reading.ranges import Range
from rollcall.consumers.history.reading.selection import Selection
from rollcall.consumers.history.replay.export import Export, export
from rollcall.consumers.tables.query import QueryResult, open_tables
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import RolloutRequest, ScoredTrajectory, Task, Trajectory
from tests.support.memory_cluster import CORRIDOR, POLICY, MemoryCluster

ROLLOUTS = 7


@pytest.fixture
def cluster() -> MemoryCluster:
    made = MemoryCluster()
    made.hire(lambda call: "left")
    for number in range(ROLLOUTS):
        task = Task(CORRIDOR, seed=number, system="Go on.")
        run = "odd" if number % 2 else "even"
        made.ask(RolloutRequest(f"r{number}", task, policy_id=POLICY, run_id=run))
    made.finish()
    return made


def exported(cluster: MemoryCluster, directory: Path, span: Range | None = None) -> Export:
    return export(Selection(cluster, span or Range()), directory)


def ask(sql: str, *directories: Path) -> list[tuple[Any, ...]]:
    with open_tables(directories) as opened:
        return list(opened.ask(sql).rows)


def again(cluster: MemoryCluster, topic: str) -> None:
    """Write every record of a topic a second time, as a restarted worker does."""
    for record in cluster.log.all(topic):
        cluster.log.append(topic, record.key, record.value, record.partition)


def test_the_export_counts_the_same_rollouts_as_verify(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    again(cluster, cluster.topics.trajectories)
    again(cluster, cluster.topics.scored)
    cluster.log.append(cluster.topics.trajectories, b"r", b"rubbish", 0)

    exported(cluster, tmp_path / "out")

    report = audit(cluster, drained=True)
    assert report.ended == ROLLOUTS
    counted = "select count(*), count(distinct rollout_id), count(total) from trajectories"
    assert ask(counted, tmp_path / "out") == [(report.ended,) * 3]
    assert ask("select count(*) from scores", tmp_path / "out") == [(report.ended,)]


def test_overlapping_exports_count_every_rollout_once(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    exported(cluster, first, Range(run_id="odd"))
    exported(cluster, second)

    counted = "select (select count(*) from trajectories), (select count(*) from turns)"

    assert ask(counted, first, second) == ask(counted, second)
    assert ask("select count(*) from trajectories_as_written", first, second) == [(ROLLOUTS + 3,)]


def test_a_turn_joins_an_answer_with_its_observation_and_reward(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    exported(cluster, tmp_path / "out")

    turns = ask(
        "select line, turn, role, content, action, observation, reward, done from turns "
        "where rollout_id = 'r3' order by line",
        tmp_path / "out",
    )

    assert turns == [
        (0, 0, None, None, None, "corridor 3", 0.0, False),
        (1, 1, "system", "Go on.", None, None, None, None),
        (2, 1, "user", "corridor 3", None, None, None, None),
        (3, 1, "assistant", "left", "left", "door 1", 0.0, False),
        (4, 2, "user", "door 1", None, None, None, None),
        (5, 2, "assistant", "left", "left", "door 2", 0.0, False),
        (6, 3, "user", "door 2", None, None, None, None),
        (7, 3, "assistant", "left", "left", "door 3", 1.0, True),
    ]


def test_totals_and_scorers_are_columns_and_unscored_rollouts_have_nulls(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    topics = cluster.topics
    cluster.log.crew = []
    [record, *_] = cluster.log.all(topics.scored)
    scored = cluster.codec.decode(record.value, ScoredTrajectory)
    other = ScoredTrajectory("strict", scored.trajectory, scored.rewards * 2, 0.5, "t", 0, 0)
    cluster.log.append(topics.scored, record.key, cluster.codec.encode(topics.scored, other))
    late = cluster.codec.decode(cluster.log.all(topics.trajectories)[0].value, Trajectory)
    lone = replace(late, rollout_id="lone")
    cluster.log.append(
        topics.trajectories, b"lone", cluster.codec.encode(topics.trajectories, lone)
    )

    exported(cluster, tmp_path / "out")

    found = ask(
        "select rollout_id, scoring_id, total, rewards['environment_return'], totals['strict'] "
        f"from trajectories where rollout_id in ('{scored.trajectory.rollout_id}', 'lone') "
        "order by total nulls first",
        tmp_path / "out",
    )
    assert found == [
        ("lone", None, None, None, None),
        (scored.trajectory.rollout_id, "default", 1.0, 1.0, 0.5),
    ]


def test_the_four_timers_of_a_rollout_are_columns_and_add_up(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    exported(cluster, tmp_path / "out")

    found = ask(
        "select count(*), count(submission_s), min(environment_start_s) >= 0, "
        "max(abs(scheduling_s + environment_start_s + execution_s - seconds)) from trajectories",
        tmp_path / "out",
    )
    assert found[0][:3] == (ROLLOUTS, ROLLOUTS, True)
    assert found[0][3] < 0.05


def test_a_range_is_exported_with_only_its_own_scores(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    written = exported(cluster, tmp_path / "out", Range(run_id="odd"))

    assert written.rows == {"trajectories": 3, "turns": 24, "scores": 3}
    assert ask("select distinct run_id from scores", tmp_path / "out") == [("odd",)]


def test_unscored_rollouts_can_be_exported(tmp_path: Path) -> None:
    cluster = MemoryCluster()
    cluster.hire(lambda call: "fall")
    cluster.log.crew = cluster.log.crew[:-1]  # no scorer
    cluster.ask(RolloutRequest("r", Task(CORRIDOR), policy_id=POLICY))
    cluster.finish()

    exported(cluster, tmp_path / "out")

    assert ask("select rollout_id, total from trajectories", tmp_path / "out") == [("r", None)]
    assert ask("select * from scores", tmp_path / "out") == []


def test_a_score_is_found_despite_another_brokers_slow_clock(tmp_path: Path) -> None:
    cluster = MemoryCluster()
    cluster.hire(lambda call: "left")
    cluster.ask(RolloutRequest("r", Task(CORRIDOR), policy_id=POLICY))
    cluster.finish()
    topics, codec, wall = cluster.topics, cluster.codec, cluster.log.wall
    scored = codec.decode(cluster.log.all(topics.scored)[0].value, ScoredTrajectory)
    cluster.log.crew = []
    ended = replace(scored.trajectory, rollout_id="early")
    early = codec.encode(topics.scored, replace(scored, trajectory=ended))
    cluster.log.wall = lambda: wall() + 100.0
    cluster.log.append(topics.scored, b"early", early)
    cluster.log.wall = lambda: wall() + 105.0
    value = codec.encode(topics.trajectories, ended)
    cluster.log.append(topics.trajectories, b"early", value)

    written = exported(cluster, tmp_path / "out", Range(ids=frozenset({"early"})))

    assert written.rows["scores"] == 1


def test_rows_are_written_to_their_days_folder(cluster: MemoryCluster, tmp_path: Path) -> None:
    topics, codec, wall = cluster.topics, cluster.codec, cluster.log.wall
    ended = codec.decode(cluster.log.all(topics.trajectories)[0].value, Trajectory)
    scored = codec.decode(cluster.log.all(topics.scored)[0].value, ScoredTrajectory)
    ended = replace(ended, rollout_id="late")
    cluster.log.crew = []
    cluster.log.wall = lambda: wall() + 86_400.0
    cluster.log.append(topics.trajectories, b"late", codec.encode(topics.trajectories, ended))
    late = codec.encode(topics.scored, replace(scored, trajectory=ended))
    cluster.log.append(topics.scored, b"late", late)

    directory = tmp_path / "out"
    exported(cluster, directory)

    assert {len(list((directory / table).iterdir())) for table in directory.iterdir()} == {2}
    own_day = "select count(*) from {} where day = appended_at::date"
    counts = [ask(own_day.format(table), directory) for table in ("trajectories", "scores")]
    assert counts == [[(ROLLOUTS + 1,)]] * 2


@pytest.mark.parametrize("what", ["a file in it", "a file"])
def test_a_non_empty_directory_is_refused_before_any_read(
    cluster: MemoryCluster, tmp_path: Path, what: str
) -> None:
    directory = tmp_path / "out"
    if what == "a file":
        directory.write_text("mine")
    else:
        directory.mkdir()
        (directory / "mine").write_text("mine")

    with pytest.raises(Refused, match="is there already and"):
        exported(cluster, directory)

    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_empty_range_leaves_no_directory(cluster: MemoryCluster, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"'odds'.* 'odd'"):
        exported(cluster, tmp_path / "out", Range(run_id="odds"))

    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_export_leaves_no_files(cluster: MemoryCluster, tmp_path: Path) -> None:
    def interrupted(done: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(Selection(cluster, Range()), tmp_path / "out", interrupted)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("selec 1", "line 1, column 1 ('selec'): parser error"),
        ("select 1,\n  nope from turns", "line 2, column 3 ('nope'): binder error"),
        ("select * from nope", "line 1, column 15 ('nope'): catalog error"),
        ("select 'a'::int from turns", "conversion error"),
        ("", "one query at a time, not 0"),
        ("select 1; select 2", "one query at a time, not 2"),
        ("copy turns to 'here/x.csv'", "COPY is no query"),
        ("create table t as select 1", "CREATE is no query"),
        ("set enable_external_access = true", "SET is no query"),
        ("select * from read_text('/etc/hostname')", "permission error"),
    ],
)
def test_a_wrong_query_is_reported_in_one_line_with_its_position(
    cluster: MemoryCluster, tmp_path: Path, sql: str, says: str
) -> None:
    exported(cluster, tmp_path / "out")

    with pytest.raises(Refused) as refused:
        ask(sql, tmp_path / "out")

    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_query_without_an_export_names_the_export_command(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="rollcall export --parquet"):
        ask("select 1", tmp_path)


def test_a_broken_parquet_file_is_named(cluster: MemoryCluster, tmp_path: Path) -> None:
    exported(cluster, tmp_path / "out")
    [whole] = (tmp_path / "out" / "turns").glob("*/*.parquet")
    whole.with_name("broken.parquet").write_bytes(b"PAR1")

    with pytest.raises(Refused, match=r"broken\.parquet"):
        ask("select * from turns", tmp_path / "out")


def test_an_answer_is_printed_as_table_json_lines_or_csv(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def answer() -> QueryResult:
        values = (1, None, float("nan"), {"a": [0.5]}), (2, "b,c", 0.0, None)
        return QueryResult(["n", "text", "x", "map"], iter(values * 60))

    out = io.StringIO()
    print_json(answer(), out)
    assert json.loads(out.getvalue().splitlines()[0]) == {
        "n": 1, "text": None, "x": None, "map": {"a": [0.5]},
    }  # fmt: skip
    out = io.StringIO()
    print_csv(answer(), out)
    assert list(csv.reader(io.StringIO(out.getvalue())))[:3:2] == [
        ["n", "text", "x", "map"], ["2", "b,c", "0.0", ""],
    ]  # fmt: skip
    print_table(answer(), Console(width=80))
    assert "and 20 more rows" in capsys.readouterr().out
