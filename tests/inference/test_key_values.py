"""Keys and values of a batch stay within their bound, with the same answers."""

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollcall.inference.transformers_engine import TransformersEngine
from tests.support.policies import call, take, version_of
from tests.support.tiers import examples

SERVING: dict[tuple[Path, int], TransformersEngine] = {}


def serving(policy: Path, tokens: int) -> TransformersEngine:
    """One engine for many examples, with room for the keys of so many tokens."""
    if (policy, tokens) not in SERVING:
        engine = TransformersEngine("policy", policy)
        room = tokens * engine._kv.bytes_per_token()
        engine = TransformersEngine("policy", policy, max_cache_bytes=room)
        take(engine, version_of(policy, 1))
        SERVING[policy, tokens] = engine
    return SERVING[policy, tokens]


@settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    calls=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 40)), min_size=12, max_size=24),
    room=st.sampled_from([600, 1000, 1500]),
    apart=st.integers(0, 2),
)
def test_a_batch_within_a_memory_bound_gives_the_unbounded_answers(
    lake: Path, calls: list[tuple[int, int]], room: int, apart: int
) -> None:
    made = [
        call(f"r{n}", said="D " * said, max_tokens=more) for n, (said, more) in enumerate(calls)
    ]
    told, held = [], []
    for tokens in (room, 10**6):
        engine = serving(lake, tokens)
        per_token = engine._kv.bytes_per_token()
        answers = []
        for one in made:
            engine.add(one)
            for _ in range(apart):
                answers += engine.step()
                held.append(engine._kv._kv.nbytes / (tokens * per_token))
        while engine.busy():
            answers += engine.step()
            held.append(engine._kv._kv.nbytes / (tokens * per_token))
        told.append({a.call.rollout_id: a.body.token_ids for a in answers})

    assert max(held) <= 1
    assert told[0] == told[1]
    assert len(told[0]) == len(calls)
