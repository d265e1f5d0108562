"""Requests from the command line: validated, published, watched until scored."""

import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollcall.compose.submission import NotScored
from rollcall.consumers.log.memory_log import MemoryPublisher
from rollcall.schemas.errors import DeliveryFailed, Refused, TopicsDiffer, WorkFailed
from rollcall.schemas.messages import RolloutRequest
from tests.support.command_line import call, options
from tests.support.memory_cluster import CORRIDOR, POLICY, MemoryCluster

Submit = Callable[..., None]


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster()


@pytest.fixture
def submitted(cluster: MemoryCluster, tmp_path: Path) -> Submit:
    """Submits lines, given as objects or as text, the way the command line does."""

    def go(*lines: object, **given: Any) -> None:
        path = tmp_path / "requests.jsonl"
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("\n".join(texts))
        source = given.pop("source", "" if "dataset" in given else str(path))
        defaults = {"count": 3, "policy": POLICY, "timeout_s": 5.0}
        call(cluster, "submit", *([source] if source else []), *options(**defaults | given))

    return go


def walk(**fields: object) -> dict[str, object]:
    return {"task": {"environment": CORRIDOR}, **fields}


def published(cluster: MemoryCluster) -> list[RolloutRequest]:
    topic = cluster.topics.requests
    records = cluster.log.all(topic)
    return [cluster.codec.decode(record.value, RolloutRequest) for record in records]


# Published


def test_every_line_becomes_a_request_with_the_defaults(
    cluster: MemoryCluster, submitted: Submit, capsys: pytest.CaptureFixture[str]
) -> None:
    submitted(walk(rollout_id="a"), "", walk(rollout_id="b", agent="single_turn"), agent="react")

    requests = {request.rollout_id: request for request in published(cluster)}
    assert requests.keys() == {"a", "b"}
    assert {request.policy_id for request in requests.values()} == {POLICY}
    assert (requests["a"].agent, requests["b"].agent) == ("react", "single_turn")
    assert capsys.readouterr().out.startswith("2 of 2 requests acked")


def test_lines_may_come_from_standard_input(
    cluster: MemoryCluster, submitted: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"\xef\xbb\xbf" + json.dumps(walk()).encode() + b"\r\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    submitted(source="-")

    assert len(published(cluster)) == 1


def test_group_has_the_given_number_of_rollouts_of_one_task(
    cluster: MemoryCluster, submitted: Submit
) -> None:
    submitted(walk(rollout_id="a"), group_size=3)

    requests = published(cluster)
    assert sorted(request.rollout_id for request in requests) == ["a-0", "a-1", "a-2"]
    assert {(request.group_id, request.group_size) for request in requests} == {("a", 3)}


def test_data_set_gives_one_task_per_seed(cluster: MemoryCluster, submitted: Submit) -> None:
    submitted(dataset="chain_sum", count=4)

    requests = published(cluster)
    assert sorted(request.task.seed for request in requests) == [0, 1, 2, 3]
    assert {request.agent for request in requests} == {"single_turn"}
    assert json.loads(requests[0].task.environment_config) == {"dataset": "chain_sum"}


# Turned away


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"policy_id"', "not JSON"),
        ("[1]", "a JSON object is needed, found list"),
        ('{"policy_versions": 3}', "policy_versions must be an object of versions by policy"),
        ('{"min_policy_versions": {"b": true}}', "must be an object of versions by policy, found"),
        (b"\xff".decode("latin-1"), "not JSON"),
        ({"tusk": {}}, "unknown key 'tusk'; did you mean 'task'"),
        ({"task": {"seed": "x"}}, "task.seed must be int"),
        (walk(rollout_id="a b"), "rollout_id 'a b' must be"),
        (walk(rollout_id="good"), "rollout_id 'good' came before"),
        (walk(agent="reakt"), "unknown program 'reakt'; did you mean 'react'"),
        (walk(agent="nosuch:thing"), "module 'nosuch' cannot be imported"),
        ({"task": {"environment": "gymnasiun"}}, "unknown environment 'gymnasiun'; did you mean"),
        ({"task": {"environment": "nosuch:Thing"}}, "there is no module 'nosuch'"),
        ({"task": {"prompt": "Hello?"}}, "program 'react' acts in task.environment, which is"),
        ({"agent": "single_turn"}, "neither an environment nor a prompt"),
        (walk(agent="hosted"), "agent_config.agent is None; it names the agent to host"),
        (
            walk(agent="hosted", agent_config='{"agent": "mini-swe"}'),
            "unknown agent 'mini-swe'; did you mean 'mini-swe-agent'",
        ),
        (walk(policy_id="q"), "rollcall topics apply --policy q"),
        (walk(policy_id="Q!"), "policy id 'Q!' must be 1 to 200 of"),
        (walk(agent_config="[]"), "agent_config must be a JSON object"),
        (walk(limits={"max_turns": 0}), "limits.max_turns must be from 1"),
        (walk(limits={"max_turns": 2**31}), "limits.max_turns must be from 1 to 2147483647"),
        (walk(limits={"rollout_timeout_s": 7776000}), "limits.rollout_timeout_s must be from"),
        (walk(limits={"call_timeout_s": 1e300}), "limits.call_timeout_s must be from"),
        (walk(sampling={"temperature": -1}), "sampling.temperature must be from 0"),
        ({"task": {"environment": CORRIDOR, "seed": 2**63}}, "task.seed must be from"),
        ({"task": {"environment": CORRIDOR, "prompt": "a" * 1_000_001}}, "a request of 1,000,"),
    ],
)
def test_one_bad_line_is_named_by_number_and_nothing_is_published(
    line: object, words: str, cluster: MemoryCluster, submitted: Submit
) -> None:
    with pytest.raises(Refused) as refused:
        submitted(walk(rollout_id="good"), "", line, walk())

    assert str(refused.value).startswith("line 3: ")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert published(cluster) == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"source": ""}, "found neither"),
        ({"source": "some.jsonl", "dataset": "chain_sum"}, "found both"),
        ({"source": "/nowhere/some.jsonl"}, "No such file or directory"),
        ({"source": "/"}, "Is a directory"),
        ({}, "it holds no line that is not empty"),
        ({"dataset": "chain_sumz"}, "unknown data set 'chain_sumz'; did you mean 'chain_sum'"),
        ({"dataset": "chain_sum", "policy": "q"}, "rollcall topics apply --policy q"),
        ({"dataset": "chain_sum", "again": True}, "rollouts of a data set have new ids"),
    ],
)
def test_input_without_requests_is_refused_in_one_line(
    given: dict[str, Any], words: str, cluster: MemoryCluster, submitted: Submit
) -> None:
    with pytest.raises(Refused, match=words):
        submitted(**given)

    assert published(cluster) == []


def test_cluster_without_its_topics_takes_no_requests(
    cluster: MemoryCluster, submitted: Submit
) -> None:
    del cluster.log.topics[cluster.topics.events]

    with pytest.raises(TopicsDiffer, match="rollcall topics apply"):
        submitted(walk())


def test_unacknowledged_requests_are_counted(cluster: MemoryCluster, submitted: Submit) -> None:
    class Deaf(MemoryPublisher):
        def flush(self, timeout_s: float) -> int:
            del timeout_s
            return 1

    cluster.log.publisher = lambda: Deaf(cluster.log)

    with pytest.raises(DeliveryFailed, match="2 of 3"):
        submitted(walk(), walk(), walk())


# Watched


def test_waiting_ends_when_all_are_scored_and_shows_their_results(
    cluster: MemoryCluster, submitted: Submit, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.hire(lambda call: "fall" if call.rollout_id.startswith("short") else "go")

    submitted(walk(rollout_id="long"), walk(rollout_id="short"), wait=True)

    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("long  finished  3 turns  reward +1.000")]
    assert [line for line in lines if line.startswith("short  finished  1 turns  reward +0.000")]
    assert lines[-1] == "2 of 2 scored, 2 finished, mean reward +0.500"


def test_file_submitted_twice_is_run_once(
    cluster: MemoryCluster, submitted: Submit, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.hire(lambda call: "go")
    lines = walk(rollout_id="a"), walk(rollout_id="b")
    submitted(*lines, wait=True)
    capsys.readouterr()

    submitted(*lines, wait=True)

    out = capsys.readouterr().out.splitlines()
    told = "  refused  0 turns  reward none: refused/repeated"
    assert [line[0] for line in sorted(out) if line[1:].startswith(told)] == ["a", "b"]
    assert out[-1] == "2 of 2 scored, 2 refused"


def test_file_is_run_again_under_new_ids(
    cluster: MemoryCluster, submitted: Submit, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.hire(lambda call: "go")
    lines = walk(rollout_id="a", group_id="g"), walk(rollout_id="b")
    submitted(*lines, wait=True)

    submitted(*lines, wait=True, again=True)

    a, new_a, b, new_b = sorted(published(cluster), key=lambda r: r.rollout_id)
    mark = new_a.rollout_id.removeprefix("a")
    assert len(mark) > 8
    assert new_a == replace(a, rollout_id=f"a{mark}", group_id=f"g{mark}")
    assert new_b == replace(b, rollout_id=f"b{mark}")
    assert capsys.readouterr().out.splitlines()[-1].startswith("2 of 2 scored, 2 finished")


def test_failed_rollout_ends_the_wait(
    cluster: MemoryCluster, submitted: Submit, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(call: object) -> str:
        raise WorkFailed("raised", "it broke", retriable=False)

    cluster.hire(broken)

    submitted(walk(rollout_id="a"), walk(rollout_id="b"), group_size=2, wait=True)

    out = capsys.readouterr().out
    assert "a-0  failed  1 turns  reward none: failed/raised" in out
    assert "4 of 4 scored, 4 failed" in out


def test_wait_timeout_names_the_missing_rollouts(
    cluster: MemoryCluster, submitted: Submit, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NotScored, match=r"2 of 2.* 0\.01 s: a, b;"):
        submitted(walk(rollout_id="a"), walk(rollout_id="b"), wait=True, timeout_s=0.01)

    assert "0 of 2 scored" in capsys.readouterr().out


def test_terminal_shows_the_rollouts_as_a_table(
    cluster: MemoryCluster,
    submitted: Submit,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"TTY_COMPATIBLE": "1", "COLUMNS": "100", "LINES": "12"}.items():
        monkeypatch.setenv(name, value)
    cluster.hire(lambda call: "go")

    submitted(*(walk(rollout_id=f"r{number}") for number in range(6)), wait=True)

    out = capsys.readouterr().out
    assert "seconds" in out
    assert "finished" in out
    assert "2 rows not shown" in out
