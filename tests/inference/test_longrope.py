"""A model of longrope is served up to the length at which its frequencies change."""

from pathlib import Path

import pytest
from transformers import AutoConfig

from rollcall.inference.policy_dir import load_policy, make_policy
from rollcall.inference.transformers_engine import TransformersEngine
from rollcall.schemas.context_length import positions_used
from rollcall.schemas.messages import CallFailed, ModelAnswered
from tests.support.policies import ROTARY, WORDS, call, run, take, version_of

SHORT, LONG = 48, 96
FACTORS = {"short_factor": [1.0] * 4, "long_factor": [16.0] * 4}
PHI3 = {
    **ROTARY,
    "model_type": "phi3",
    "vocab_size": 32,
    "eos_token_id": None,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "max_position_embeddings": LONG,
    "original_max_position_embeddings": SHORT,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "original_max_position_embeddings": SHORT,
        **FACTORS,
    },
}


@pytest.fixture
def phi3(tmp_path: Path) -> Path:
    return make_policy(tmp_path / "phi3", config=PHI3, tokens="lake", template=WORDS, seed=3)


def test_the_context_ends_at_the_change_of_frequencies(phi3: Path) -> None:
    assert load_policy(phi3).context == SHORT


def test_a_too_long_row_is_refused_without_affecting_its_neighbour(phi3: Path) -> None:
    engines = [TransformersEngine("policy", phi3) for _ in range(2)]
    for engine in engines:
        take(engine, version_of(phi3, 0))
    short = call("short", said="s1 s2", max_tokens=20)
    long = call("long", said="s1 " * SHORT, max_tokens=4)

    [alone] = run(engines[0], short)
    beside, refused = run(engines[1], short, long)

    assert isinstance(alone.body, ModelAnswered)
    assert beside.body == alone.body
    assert isinstance(refused.body, CallFailed)
    assert f"maximum context length is {SHORT} tokens" in refused.body.message


@pytest.mark.parametrize(
    ("fields", "used"),
    [
        ({"max_position_embeddings": 64}, 64),
        (
            {
                "max_position_embeddings": 64,
                "rope_parameters": {
                    "rope_type": "linear",
                    "factor": 2.0,
                    "rope_theta": 1e4,
                    "original_max_position_embeddings": 8,
                },
            },
            64,
        ),
    ],
)
def test_other_models_are_served_to_their_last_position(
    fields: dict[str, object], used: int
) -> None:
    assert positions_used(AutoConfig.for_model("llama", vocab_size=8, **fields)) == used
