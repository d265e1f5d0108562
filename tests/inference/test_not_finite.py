"""Logits that are not finite fail their own call by name, and no other call."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollcall.inference.engine import EngineAnswer
from rollcall.inference.sampling import draw
from rollcall.inference.transformers_engine import TransformersEngine
from rollcall.schemas.messages import CallFailed, ModelAnswered
from tests.support.policies import call, run, take, version_of
from tests.support.tiers import examples

BROKEN = {
    "one is not a number": lambda row: row.index_fill(0, torch.tensor([1]), math.nan),
    "all are not numbers": lambda row: torch.full_like(row, math.nan),
    "one is infinite": lambda row: row.index_fill(0, torch.tensor([1]), math.inf),
    "none is finite": lambda row: torch.full_like(row, -math.inf),
}


class Poisoned(TransformersEngine):
    """Breaks the logits of some rollouts at some place of their answers."""

    broken = BROKEN["one is not a number"]
    rollouts: frozenset[str] = frozenset()
    place = 0

    def _draw(self, logits_RV, rows):  # type: ignore[no-untyped-def]
        logits_RV = logits_RV.clone()
        for at, row in enumerate(rows):
            if row.call.rollout_id in self.rollouts and len(row.logprobs) == self.place:
                logits_RV[at] = self.broken(logits_RV[at])
        return super()._draw(logits_RV, rows)


def serving(policy: Path) -> Poisoned:
    engine = Poisoned("policy", policy)
    take(engine, version_of(policy, 1))
    return engine


def answered(engine: TransformersEngine, **sampling: object) -> dict[str, EngineAnswer]:
    calls = [call(f"r{n}", said="s1 L s2", max_tokens=4, **sampling) for n in range(4)]
    return {answer.call.rollout_id: answer for answer in run(engine, *calls)}


@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(list(BROKEN)),
    rollouts=st.sets(st.sampled_from(["r0", "r1", "r2", "r3"]), min_size=1),
    place=st.integers(0, 3),
    sampling=st.sampled_from([{}, {"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.5}]),
)
def test_only_calls_with_broken_logits_fail(
    lake: Path, kind: str, rollouts: set[str], place: int, sampling: dict[str, float]
) -> None:
    sound = answered(serving(lake), **sampling)
    reached = {name for name in rollouts if len(_tokens(sound[name])) > 4 * place}
    engine = serving(lake)
    engine.broken, engine.rollouts, engine.place = BROKEN[kind], frozenset(rollouts), place

    found = answered(engine, **sampling)

    for name, answer in found.items():
        if name in reached:
            assert isinstance(answer.body, CallFailed)
            assert (answer.body.code, answer.body.retriable) == ("not_finite", False)
        else:
            assert _tokens(answer) == _tokens(sound[name])


def _tokens(answer: EngineAnswer) -> bytes:
    assert isinstance(answer.body, ModelAnswered)
    return answer.body.token_ids


def test_a_row_with_nan_keys_does_not_affect_the_next_one(lake: Path) -> None:
    sound = answered(serving(lake))
    engine = serving(lake)
    engine.broken, engine.rollouts = BROKEN["all are not numbers"], frozenset({"r0"})
    for one in range(4):
        engine.add(call(f"r{one}", said="s1 L s2", max_tokens=4))
    engine._admit()
    engine._kv._kv[:, 0] = math.nan
    run(engine)

    engine.rollouts = frozenset()
    assert answered(engine)["r0"].body == sound["r0"].body


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("kind", BROKEN)
def test_a_draw_from_broken_logits_has_no_finite_log_probability(
    kind: str, temperature: float
) -> None:
    row = torch.tensor([1.0, 0.0, 2.0])
    logits = torch.stack([BROKEN[kind](row), row])
    ones, none = torch.ones(2), torch.zeros(2, dtype=torch.int64)

    _, (broken, sound) = draw(logits, temperature * ones, none, ones, 0.5 * ones.double())

    assert not math.isfinite(broken)
    assert math.isfinite(sound)
