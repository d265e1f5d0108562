"""Whole rollouts with the policy on a foreign server: asked over HTTP, graded, verified."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from rollcall.compose.conductor.live_evaluation import LiveEvaluation
from rollcall.compose.settings import ModelsSettings, OpenAISettings
from rollcall.compose.workers.engines import server_engine
from rollcall.compose.workers.worker_factory import WorkerFactory
from rollcall.consumers.audit.audit import audit
from rollcall.schemas.messages import CallFailed, Event, ModelAnswered
from tests.support.memory_cluster import CORRIDOR, POLICY, hired
from tests.support.openai_mock import Body, Reply, chat, serving
from tests.support.waiting import give_way


def test_foreign_server_is_evaluated_and_its_journal_verifies(tmp_path: Path) -> None:
    """Every third request is turned away, and every fifth answer is cut."""
    asked = 0

    def speak(path: str, body: Body) -> Any:
        nonlocal asked
        asked += 1
        if asked % 3 == 0:
            return Reply({"error": {"message": "slow down"}}, 429, {"Retry-After": "0.01"})
        return Reply(chat("right"), keep=30) if asked % 5 == 0 else chat("right")

    task = {"task": {"environment": CORRIDOR, "seed": 5}, "limits": {"max_turns": 4}}
    (tmp_path / "tasks.jsonl").write_bytes(orjson.dumps(task))
    with serving(speak) as server, hired(tmp_path, lambda call: "unasked") as cluster:
        options = OpenAISettings(base_url=server.url, model="m")
        engine = server_engine(POLICY, None, ModelsSettings(openai=options))
        factory = WorkerFactory(
            cluster.log, cluster.codec, cluster.topics, cluster.settings, watched=False
        )
        crew = list(cluster.log.crew)
        crew[1].stop(0.0)
        crew[1] = factory.models("models-2", engine)
        cluster.log.crew = crew
        work = cluster.log.work
        cluster.log.work = lambda: (give_way(), work())[1]  # type: ignore[method-assign, func-returns-value]

        live = LiveEvaluation(str(tmp_path / "tasks.jsonl"), 3, 0, "", 1.0, 30.0)
        _, found = live.run(cluster, POLICY)  # type: ignore[arg-type]
        while cluster.log.work():
            pass
        report = audit(cluster)

    bodies = [event.body for event in cluster.read(cluster.topics.events, Event)]
    answers = [each for each in bodies if isinstance(each, ModelAnswered)]
    assert {each.untrainable for each in answers} == {"no_token_ids"}
    assert not [each for each in bodies if isinstance(each, CallFailed)]
    [(of_policy, tasks)] = found.scored_by("").items()
    assert of_policy == (POLICY, 0)
    assert [each.rollouts for each in tasks.values()] == [3]
    assert report.breaches == []
    for trajectory in cluster.trajectories():
        assert not any(sum(each.loss_mask) for each in trajectory.sequences or ())
        assert trajectory.sampled_tokens == 2 * trajectory.model_calls


pytestmark = pytest.mark.timeout(120)
