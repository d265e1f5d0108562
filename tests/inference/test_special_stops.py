"""Stop strings that contain special tokens or parts of them."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.inference.policy_dir import make_policy
from rollcall.inference.slot import Slot
from rollcall.inference.slot_answer import Decoder, answer_of
from rollcall.inference.stream_text import IncrementalText
from rollcall.inference.transformers_engine import TransformersEngine
from rollcall.schemas.messages import ModelAnswered
from tests.support.policies import GPT2, call, run, take, tokens, version_of

WORDS = ["<|im_start|>", "<|im_end|>", "<unk>", "\n", *map(chr, range(32, 127))]
SPECIAL = "<|im_start|>"
END = WORDS.index("<|im_end|>")
ALPHABET = [WORDS.index(word) for word in (SPECIAL, "a", "b", "<", "|")]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> TransformersEngine:
    config = {**GPT2, "vocab_size": len(WORDS), "bos_token_id": 2, "eos_token_id": END}
    directory = make_policy(
        tmp_path_factory.mktemp("special") / "p",
        config=config,
        tokens=WORDS,
        template={"kind": "chatml"},
        seed=0,
    )
    engine = TransformersEngine("policy", directory)
    take(engine, version_of(directory, 1))
    return engine


def told(engine: TransformersEngine, sampled: Sequence[int], *stops: str) -> ModelAnswered:
    """The answer if these tokens are sampled until a stop string ends it."""
    decode = Decoder(engine.policy.tokenizer)
    one = call(said="a", max_tokens=len(sampled), stop=stops)
    row = Slot(one, [3], [3], len(sampled), 0, IncrementalText(decode.whole))
    for token in sampled:
        if not row.finish:
            row.add(token, -1.0, 1, engine.policy.end_ids)
    answer = answer_of(row, engine.policy, decode, "test")
    assert isinstance(answer, ModelAnswered)
    return answer


@given(
    sampled=st.lists(st.sampled_from(ALPHABET), min_size=1, max_size=12),
    cut=st.tuples(st.integers(0, 40), st.integers(1, 20)),
)
def test_an_answer_ends_with_the_first_token_that_completes_a_stop_string(
    engine: TransformersEngine, sampled: list[int], cut: tuple[int, int]
) -> None:
    whole = "".join(WORDS[token] for token in sampled)
    at = cut[0] % len(whole)
    stop = whole[at : at + cut[1]]
    begins = whole.find(stop)
    ends = begins + len(stop)
    needed = next(
        n for n in range(1, len(sampled) + 1) if len("".join(WORDS[t] for t in sampled[:n])) >= ends
    )

    answer = told(engine, sampled, stop)

    assert tokens(answer.token_ids) == sampled[:needed]
    assert answer.stopped_by == stop
    assert answer.finish_reason == "stop"
    kept, text = "", ""
    for token in sampled:
        word = WORDS[token]
        room = begins - len(kept)
        if room <= 0:
            break
        text += "" if word == SPECIAL else word[:room]
        kept += word
    assert answer.text == text


def test_the_engine_stops_at_a_special_token_used_as_stop_string(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    letter = WORDS.index("a")
    script = [letter, 0, letter, letter]
    draw = engine._draw

    def scripted(logits, rows):  # type: ignore[no-untyped-def]
        for at, row in enumerate(rows):
            logits[at, script[len(row.logprobs)]] = 1000.0
        return draw(logits.clone(), rows)

    monkeypatch.setattr(engine, "_draw", scripted)

    [stopped] = run(engine, call("r1", said="hi", max_tokens=4, stop=(SPECIAL,)))
    [free] = run(engine, call("r2", said="hi", max_tokens=4))

    assert isinstance(stopped.body, ModelAnswered)
    assert isinstance(free.body, ModelAnswered)
    assert (stopped.body.text, stopped.body.stopped_by) == ("a", SPECIAL)
    assert tokens(stopped.body.token_ids) == script[:2]
    assert (free.body.text, tokens(free.body.token_ids)) == ("aaa", script)
