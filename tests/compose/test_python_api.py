"""Commands as functions: the same requests, records and refusals as by the command line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rollcall
from rollcall.compose.cli.connection import CLUSTER
from rollcall.compose.submission import NotScored
from rollcall.schemas.errors import Refused
from tests.support.memory_cluster import CORRIDOR, POLICY, SAID, MemoryCluster, hired
from tests.support.tiny_run import RECIPE


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MemoryCluster]:
    with hired(tmp_path, lambda call: SAID) as cluster:
        token = CLUSTER.set(cluster)  # type: ignore[arg-type]
        yield cluster
        CLUSTER.reset(token)


def walk(name: str, **fields: object) -> dict[str, object]:
    return {"rollout_id": name, "task": {"environment": CORRIDOR}, "policy_id": POLICY, **fields}


def test_submitted_requests_are_scored_and_read_back(cluster: MemoryCluster) -> None:
    asked = [walk("a", run_id="r"), walk("b", run_id="q")]

    names = rollcall.submit(asked, policy=POLICY, group_size=2, wait=True, timeout_s=60.0)

    assert names == ["a-0", "a-1", "b-0", "b-1"]
    assert {each.rollout_id for each in rollcall.trajectories("r")} == {"a-0", "a-1"}
    assert {each.rollout_id for each in rollcall.trajectories()} == {*names}
    assert [each.total for each in rollcall.scored_trajectories("q")] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ([], "no requests"),
        ([walk("a"), "x"], r"requests\[1\] is 'x', of type str; give a list of mappings"),
        (walk("a"), r"requests\[0\] is 'rollout_id', of type str; give a list of mappings"),
        ([{"tsak": {}}], "did you mean 'task'"),
        ([walk("a"), walk("a")], "every rollout needs its own"),
        ([walk("a", policy_id="nowhere")], "has no topic"),
    ],
)
def test_bad_requests_are_refused_and_none_is_published(
    cluster: MemoryCluster, asked: Any, says: str
) -> None:
    with pytest.raises(Refused, match=says):
        rollcall.submit(asked, policy=POLICY)

    assert cluster.log.all(cluster.topics.requests) == []


def test_rollouts_that_are_not_scored_in_time_are_named(cluster: MemoryCluster) -> None:
    cluster.log.crew = []

    with pytest.raises(NotScored, match=r"not scored .*: a;"):
        rollcall.submit([walk("a")], wait=True, timeout_s=0.0)


def test_trajectories_of_an_unknown_run_are_refused(cluster: MemoryCluster) -> None:
    rollcall.submit([walk("a", run_id="one")], wait=True, timeout_s=60.0)

    with pytest.raises(Refused, match="one"):
        list(rollcall.trajectories("onee"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"log": "memroy"}, "did you mean 'memory'"),
        ({"log": "memory", "resume": True}, "keeps nothing"),
        ({"resume": True, "tasks": Path("there")}, "leave its tasks out"),
    ],
)
def test_run_refuses_what_does_not_fit(options: dict[str, object], says: str) -> None:
    with pytest.raises(Refused, match=says):
        rollcall.run("lake", **options)  # type: ignore[arg-type]


def test_run_in_memory_returns_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)

    figures = rollcall.run(tmp_path / "tiny.toml", log="memory", seed=3)

    assert figures["seed"] == 3
    assert figures["steps"] > 0
    assert "held-out" in capsys.readouterr().out
