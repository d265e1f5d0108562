"""The share of a session that is fed again, in tokens that the model was fed."""

from pathlib import Path
from random import Random

import pytest

from rollcall.inference.policy_dir import make_policy
from rollcall.inference.transformers_engine import TransformersEngine
from rollcall.schemas.messages import ModelAnswered, ModelCall
from tests.support.policies import ROTARY, WORDS, after, body, call, run, take, version_of

TURNS, TOKENS = 16, 64


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = {"model_type": "qwen2", "tie_word_embeddings": True, "vocab_size": 32, **ROTARY}
    return make_policy(
        tmp_path_factory.mktemp("kept") / "lake",
        config={**config, "eos_token_id": None, "max_position_embeddings": 2048},
        tokens="lake",
        template=WORDS,
        seed=3,
    )


def serving(policy: Path, sessions: int) -> TransformersEngine:
    """An engine whose kept prefixes have room for so many whole sessions."""
    engine = TransformersEngine("policy", policy)
    room = sessions * TURNS * (TOKENS + 4) * engine._kv.bytes_per_token()
    engine = TransformersEngine("policy", policy, max_cache_bytes=4 * room)
    take(engine, version_of(policy, 1))
    return engine


def turn(engine: TransformersEngine, one: ModelCall, number: int) -> ModelCall:
    """Answer a call, and make the next one of its session."""
    answered = body(engine, one)
    assert isinstance(answered, ModelAnswered)
    prefix = after(one, answered)
    return call(one.rollout_id, number, said="L " * (TOKENS - 1), prefix=prefix, max_tokens=1)


def read_per_new_token(policy: Path, sessions: int, room: int) -> float:
    """Turns of the sessions come in random order, as many of each."""
    engine, dice = serving(policy, room), Random(0)
    calls = {n: call(f"s{n}", said="D " * (TOKENS - 1), max_tokens=1) for n in range(sessions)}
    left = {n: TURNS for n in calls}
    while left:
        number = dice.choice(sorted(left))
        calls[number] = turn(engine, calls[number], TURNS - left[number] + 1)
        left[number] -= 1
        if not left[number]:
            del left[number]
    new = sum(one.prefix_length for one in calls.values())
    return engine.fed_tokens / new


def test_cached_sessions_are_fed_once(policy: Path) -> None:
    assert read_per_new_token(policy, sessions=4, room=4) <= 1.02


def test_a_prefix_is_kept_while_another_call_starts_with_it(policy: Path) -> None:
    engine = serving(policy, 4)
    first = call("a", said="D " * (TOKENS - 1), max_tokens=1)
    prefix = after(first, body(engine, first))
    forks = [call(f"f{n}", 1, said="L", prefix=prefix, max_tokens=n + 1) for n in range(4)]
    before = engine.fed_tokens

    run(engine, *forks)

    assert engine.fed_tokens - before < TOKENS
