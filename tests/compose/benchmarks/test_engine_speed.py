"""The engine's speed beside a bare `generate`: both sample as much after the same prompts."""

from pathlib import Path

import pytest

from rollcall.compose.benchmarks.engine_speed import (
    CallBatch,
    Round,
    Worker,
    calls_of,
    compared,
    figure,
    generate,
    prompts_of,
)
from rollcall.compose.settings import Settings
from rollcall.schemas.messages import Event, ModelAnswered
from rollcall.schemas.packed import ids_of
from tests.support import policies

BATCH = CallBatch(calls=3, prompt=4, answer=5)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return policies.lake(tmp_path_factory.mktemp("policy") / "lake")


def test_fastest_rounds_are_compared_by_cpu_time() -> None:
    rounds = {
        "worker": [Round(0.5, 1.0), Round(0.25, 0.75)],
        "generate": [Round(0.125, 3.0), Round(0.5, 2.0)],
    }

    found = figure(CallBatch(calls=2, prompt=9, answer=50), rounds)

    assert (found.value, found.ceiling, found.ratio) == (400, 800, 0.5)
    assert found.notes[1].startswith("generate: 800 tokens/s of CPU, 50 by the clock; 2 at once")


def test_worker_answers_all_calls_with_the_same_prompts_as_generate(
    directory: Path, tmp_path: Path
) -> None:
    worker = Worker(directory, tmp_path, Settings(state_dir=tmp_path))
    worker.send(calls_of(BATCH, 3))
    ids = prompts_of(worker.engine.policy.template, BATCH, 3)

    worker.answer()
    said = generate(worker.engine.policy.model, ids, BATCH.answer)

    records = worker.log.all(worker.topics.events)
    events = [worker.codec.decode(each.value, Event) for each in records]
    answers = [event.body for event in events if isinstance(event.body, ModelAnswered)]
    assert [ids_of(each.added_ids).tolist() for each in answers] == ids.tolist()
    assert {len(ids_of(each.token_ids)) for each in answers} == {BATCH.answer}
    assert said.shape == (BATCH.calls, ids.shape[1] + BATCH.answer)
    assert said[:, : ids.shape[1]].equal(ids)


def test_worker_and_generate_are_measured_alternately(directory: Path, tmp_path: Path) -> None:
    found = compared(directory, Settings(state_dir=tmp_path), BATCH, rounds=1)

    assert (found.unit, found.lower_is_better) == ("tokens/s", False)
    assert found.value > 0
    assert found.ceiling > 0
