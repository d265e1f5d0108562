"""Batched, cached and interrupted sampling agrees with one full forward pass."""

import gc
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollcall.inference.chat import Template
from rollcall.inference.policy_dir import load_policy
from rollcall.inference.transformers_engine import CHUNK, TransformersEngine
from rollcall.schemas.errors import Unavailable, WorkFailed
from rollcall.schemas.messages import Message, ModelAnswered, ModelCall, PolicyVersion
from rollcall.schemas.packed import ids_of, logprobs_of, pack_ids
from rollcall.schemas.published_weights import HeldWeights
from rollcall.schemas.tool_calls import ToolCall, tool_calls_of
from rollcall.schemas.weights import read_weights, write_weights
from tests.support.policies import (
    after,
    body,
    call,
    failure,
    logprobs,
    run,
    take,
    tokens,
    version_of,
    weighted,
)
from tests.support.tiers import examples


def serving(directory: Path, number: int = 0, **options: object) -> TransformersEngine:
    engine = TransformersEngine("policy", directory, **options)
    take(engine, version_of(directory, number))
    return engine


def assert_scored_by(model: torch.nn.Module, one: ModelCall, answered: ModelAnswered) -> None:
    """Every sampled token has the log-probability of a full forward pass."""
    ids = tokens(after(one, answered))
    sampled = tokens(answered.token_ids)
    full = logprobs(model, ids)[-len(sampled) :]
    expected = full.gather(1, torch.tensor(sampled)[:, None])[:, 0]
    found = torch.from_numpy(logprobs_of(answered.logprobs).copy())

    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def next_turn(one: ModelCall, answered: ModelAnswered, said: str, **sampling: object) -> ModelCall:
    return call(
        one.rollout_id, one.position + 1, said=said, prefix=after(one, answered), **sampling
    )


def test_batched_cached_and_full_forward_agree(family: Path) -> None:
    # Given calls with prompts and answers of many lengths
    engine, model = serving(family), weighted(family, 0)
    # (some begin with another token than the padding, which would hide what padding overwrites)
    calls = [
        call(
            f"r{n}",
            said=" ".join(["s1"] * (1 + 3 * n)),
            max_tokens=1 + n % 5,
            prefix=pack_ids([5, 9] if n % 3 else []),
        )
        for n in range(9)
    ]

    for turn in range(3):
        # When they are answered side by side, each turn after the one before
        answers = run(engine, *calls)

        # Then a pass over the whole sequence, alone and without a cache, says the same
        for answer in answers:
            assert_scored_by(model, answer.call, answer.body)
        calls = [
            next_turn(a.call, a.body, "no " * (n % 4) + f"s{turn}", max_tokens=3)
            for n, a in enumerate(answers)
        ]


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 30), min_size=2, max_size=8),
    answers=st.lists(st.integers(1, 12), min_size=8, max_size=8),
    apart=st.integers(0, 4),
)
def test_a_call_samples_the_same_tokens_alone_and_in_a_batch(
    lake: Path, lengths: list[int], answers: list[int], apart: int
) -> None:
    calls = [
        call(f"r{n}", said=" ".join(["D"] * length), max_tokens=answers[n])
        for n, length in enumerate(lengths)
    ]
    alone = [body(serving_lake(lake), one) for one in calls]

    together = serving_lake(lake)
    found = []
    for one in calls:
        # They join one after the other, while earlier ones decode and leave.
        together.add(one)
        for _ in range(apart):
            found += together.step()
    found += run(together)

    by_rollout = {answer.call.rollout_id: answer.body for answer in found}
    for one, expected in zip(calls, alone, strict=True):
        assert by_rollout[one.rollout_id].token_ids == expected.token_ids


SERVING: dict[Path, TransformersEngine] = {}


def serving_lake(lake: Path) -> TransformersEngine:
    """One engine for many examples: its cache of earlier ones must not matter either."""
    if lake not in SERVING:
        SERVING[lake] = serving(lake)
    return SERVING[lake]


def test_each_token_carries_the_current_version_and_its_logprob(family: Path) -> None:
    # Given calls in the middle of their answers
    engine = serving(family)
    calls = [call(f"r{n}", said="s1 " * (1 + n), max_tokens=8) for n in range(3)]
    for one in calls:
        engine.add(one)
    for _ in range(3):
        assert engine.step() == []

    # When new weights are adopted
    take(engine, version_of(family, 1))
    answers = run(engine)

    # Then each token was sampled by the weights that its version names
    assert len(answers) == 3
    for answer in answers:
        ids = tokens(after(answer.call, answer.body))
        versions = tokens(answer.body.versions)
        assert versions == [0] * 3 + [1] * 5
        for at, (version, found) in enumerate(
            zip(versions, logprobs_of(answer.body.logprobs), strict=True)
        ):
            full = logprobs(weighted(family, version), ids)[len(ids) - 1 - 8 + at]
            assert found == pytest.approx(full[ids[len(ids) - 8 + at]].item(), abs=1e-4)


def test_cached_prefixes_of_old_weights_are_not_reused(lake: Path) -> None:
    engine = serving(lake)
    first = call(said="s1 s2 s3 s4", max_tokens=4)
    answered = body(engine, first)

    take(engine, version_of(lake, 1))
    second = next_turn(first, answered, "s5", max_tokens=4)

    assert_scored_by(weighted(lake, 1), second, body(engine, second))


def test_a_wrong_canary_leaves_current_weights_and_cache_in_use(lake: Path) -> None:
    # Given a call in the middle of its answer
    undisturbed = body(serving(lake), call(max_tokens=6))
    engine = serving(lake)
    engine.add(call(max_tokens=6))
    engine.step()
    fed = engine.fed_tokens

    # When weights arrive that do not score the canary as the trainer did
    with pytest.raises(WorkFailed, match=r"version 9 .* 0\.01") as caught:
        take(engine, version_of(lake, 9, canary_off_by=0.01))
    engine.step()

    # Then it continues undisturbed: not even a key is computed again
    assert (caught.value.code, caught.value.retriable) == ("canary", False)
    assert engine.fed_tokens == fed + 1
    [answer] = run(engine)
    assert answer.body == undisturbed

    # And correct weights are adopted as usual
    take(engine, version_of(lake, 2))
    assert tokens(body(engine, call()).versions) == [2]


@pytest.fixture
def without_collector() -> Iterator[None]:
    """As in a worker, whose thresholds keep it from coming by."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_proven_models_and_released_engines_free_their_memory(
    family: Path, without_collector: None
) -> None:
    engine = serving(family)
    kind = type(engine.policy.model)
    others = _alive(kind, besides=[engine.policy.model])  # tests before this one hold theirs
    for number in (1, 2, 3):
        take(engine, version_of(family, number))
        run(engine, call(f"r{number}", said="s1", max_tokens=2))
    pinned = engine.replica()
    take(pinned, version_of(family, 1))
    run(pinned, call("pinned", said="s1", max_tokens=2))
    assert len(_alive(kind, besides=others)) == 2

    del pinned

    assert _alive(kind, besides=others) == [engine.policy.model]


def test_a_twin_of_the_served_version_reads_and_copies_nothing(lake: Path) -> None:
    engine = serving(lake)
    one, two = (version_of(lake, number) for number in (1, 2))
    take(engine, one)
    memory = engine.policy.model.get_input_embeddings().weight.data_ptr()
    Path(one.full.uri.removeprefix("file://")).unlink()

    replica = engine.replica()
    take(replica, one)
    assert replica.policy.model.get_input_embeddings().weight.data_ptr() == memory
    before = run(replica, call("r1", max_tokens=3))

    # Its elder's next weights lie elsewhere, and it can come to them by itself
    take(engine, two)
    assert run(replica, call("r1", max_tokens=3)) == before
    take(replica, two)
    assert replica.version == 2
    assert run(replica, call("r1", max_tokens=3))[0].body.logprobs != before[0].body.logprobs


def _alive(kind: type[torch.nn.Module], besides: list[torch.nn.Module]) -> list[torch.nn.Module]:
    known = {id(model) for model in besides}
    return [held for held in gc.get_objects() if type(held) is kind and id(held) not in known]


def test_tied_weights_stay_tied_after_an_adoption(family: Path) -> None:
    engine = TransformersEngine("policy", family)
    model = engine.policy.model
    before = len({parameter.data_ptr() for parameter in model.state_dict().values()})

    take(engine, version_of(family, 1))

    after_ = len({parameter.data_ptr() for parameter in model.state_dict().values()})
    assert after_ == before


def test_weights_with_a_wrong_canary_are_not_kept_as_a_base(lake: Path) -> None:
    class Noting(HeldWeights):
        forgot = 0

        def forget(self) -> None:
            self.forgot += 1

    engine = serving(lake)
    engine.held = Noting()
    take(engine, version_of(lake, 8))

    with pytest.raises(WorkFailed, match="canary"):
        take(engine, version_of(lake, 9, canary_off_by=0.5))

    assert engine.held.forgot == 1


def test_a_canary_of_nan_fails(lake: Path) -> None:
    engine = TransformersEngine("policy", lake)

    with pytest.raises(WorkFailed, match="canary"):
        take(engine, version_of(lake, 0, canary_off_by=math.nan))


def without_a_tensor(policy: Path, version: PolicyVersion) -> PolicyVersion:
    tensors = read_weights(version.full)
    tensors.pop("transformer.ln_f.bias")
    file = write_weights((policy / "weights").as_uri(), version.version, tensors)
    return replace(version, full=file)


def test_weights_of_another_model_leave_the_current_ones_in_service(lake: Path) -> None:
    engine = serving(lake)
    incomplete = without_a_tensor(lake, version_of(lake, 1))
    gone = version_of(lake, 2)
    gone = replace(gone, full=replace(gone.full, uri=gone.full.uri + ".gone"))

    with pytest.raises(WorkFailed, match=r"transformer\.ln_f\.bias") as caught:
        take(engine, incomplete)
    with pytest.raises(Unavailable):
        take(engine, gone)
    with pytest.raises(WorkFailed, match="policy 'other'"):
        take(engine, version_of(lake, 3, policy_id="other"))

    assert caught.value.code == "weights"
    assert engine.version == 0
    assert tokens(body(engine, call()).versions) == [0]


def test_tied_embeddings_may_be_published_once(lake: Path) -> None:
    version = version_of(lake, 0)

    assert "lm_head.weight" not in read_weights(version.full)

    engine = TransformersEngine("policy", lake)
    take(engine, version)

    assert engine.version == 0


def test_a_too_long_prompt_fails_permanently(lake: Path) -> None:
    failed = failure(serving(lake), call(said="s1 " * 94))

    assert (failed.code, failed.retriable) == ("too_long", False)
    assert failed.message == (
        "this model's maximum context length is 96 tokens. However, your messages resulted in 96 "
        "tokens."
    )


def test_a_call_for_no_tokens_counts_without_running_the_model(lake: Path) -> None:
    engine = serving(lake)
    first = call(max_tokens=4)
    known = after(first, body(engine, first))
    fed = engine.fed_tokens

    counted = body(engine, call(position=1, prefix=known, max_tokens=0, stop=("x",)))
    long = body(engine, call(said="s1 " * 500, max_tokens=0))
    sampled = body(engine, call(position=1, prefix=known))

    assert tokens(counted.added_ids) == tokens(sampled.added_ids)
    assert (counted.token_ids, counted.text, counted.finish_reason) == (b"", "", "length")
    assert len(tokens(long.added_ids)) > 500
    assert engine.fed_tokens - fed < 10, "neither counting was fed, and the keys were kept"


def test_max_tokens_is_limited_to_the_remaining_context(lake: Path) -> None:
    answered = body(serving(lake), call(said="s1 " * 90, max_tokens=50))

    assert len(tokens(answered.token_ids)) == 96 - 92
    assert answered.finish_reason == "length"


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"top_p": 0.0},
        {"top_k": -1},
        {"max_tokens": -1},
    ],
)
def test_invalid_sampling_options_fail_one_call_only(lake: Path, wrong: dict[str, float]) -> None:
    engine = serving(lake)

    bad, good = run(engine, call("bad", **wrong), call("good"))

    assert (bad.body.code, bad.body.retriable) == ("bad_sampling", False)
    assert isinstance(good.body, ModelAnswered)


def test_a_prefix_of_another_vocabulary_fails_one_call_only(lake: Path) -> None:
    engine = serving(lake)

    bad, unknown, good = run(
        engine, call("bad", prefix=pack_ids([0, 32])), call("unknown", said="s99"), call("good")
    )

    assert bad.body.code == "bad_prefix"
    assert unknown.body.code == "not_renderable"
    assert isinstance(good.body, ModelAnswered)


class Tooled:
    """A template that reads the tools of a call, as those of tokenizers do."""

    def __init__(self, plain: Template, tool_format: str = "none") -> None:
        self.plain = plain
        self.end_ids, self.digest = plain.end_ids, plain.digest
        self.tool_format = tool_format

    def render(
        self, messages: Sequence[Message], *, first: bool, ended: bool, tools: str = ""
    ) -> list[int]:
        json.loads(tools or "[]")
        return self.plain.render(messages, first=first, ended=ended)


def test_a_template_error_fails_its_own_call_only(lake: Path) -> None:
    engine = serving(lake)
    engine.policy = replace(engine.policy, template=Tooled(engine.policy.template))

    bad, good = run(engine, replace(call("bad"), tools="[" * 100_000), call("good"))

    assert (bad.body.code, bad.body.retriable) == ("not_renderable", False)
    assert "RecursionError" in bad.body.message
    assert isinstance(good.body, ModelAnswered)


class Caller:
    """A tokenizer to which all that is sampled spells a tool call."""

    def decode(self, ids: object, **how: object) -> str:
        return 'So: <tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'


@pytest.mark.parametrize(
    ("tool_format", "tools"), [("hermes", "[]"), ("hermes", ""), ("none", "[]")]
)
def test_tool_calls_are_parsed_if_template_and_call_have_tools(
    lake: Path, tool_format: str, tools: str
) -> None:
    policy = load_policy(lake)
    template = Tooled(policy.template, tool_format)
    engine = serving(lake, policy=replace(policy, template=template, tokenizer=Caller()))
    one = replace(call(), tools=tools)

    answered = body(engine, one)

    if tool_format == "hermes" and tools:
        assert answered.text == "So:"
        (called,) = tool_calls_of(answered.tool_calls)
        assert called == ToolCall(f"call_{one.command_id.hex()[:24]}_0", "bash", '{"command":"ls"}')
    else:
        assert (answered.text, answered.tool_calls) == (Caller().decode([]), "")
    assert len(tokens(answered.token_ids)) == 1


def test_a_call_with_tools_fails_without_a_tool_format(lake: Path) -> None:
    failed = failure(serving(lake), replace(call(), tools="[]"))

    assert (failed.code, failed.retriable) == ("not_renderable", False)
    assert '"tools": "hermes"' in failed.message


def test_temperature_zero_picks_the_likeliest_token(lake: Path) -> None:
    engine, model = serving(lake), weighted(lake, 0)
    one = call(said="s3", temperature=0.0, max_tokens=5, top_p=0.5)

    answered = body(engine, one)

    ids = tokens(after(one, answered))
    assert logprobs(model, ids)[-5:].argmax(-1).tolist() == ids[-5:]
    assert_scored_by(model, one, answered)


def test_logprobs_are_computed_after_temperature(lake: Path) -> None:
    engine, model = serving(lake), weighted(lake, 0)
    one = call(said="s3", temperature=0.5)

    answered = body(engine, one)

    ids = tokens(after(one, answered))
    hot = (logprobs(model, ids)[-1] / 0.5).log_softmax(-1)[ids[-1]].item()
    assert logprobs_of(answered.logprobs)[0] == pytest.approx(hot, abs=1e-4)


def test_a_sampled_end_token_is_kept_but_not_in_the_text(writer: Path) -> None:
    engine = serving(writer)
    answers = run(engine, *(call(f"r{n}", said="2 + 2?", max_tokens=300) for n in range(8)))

    stopped = [a.body for a in answers if a.body.finish_reason == "stop"]

    assert stopped
    for answered in stopped:
        ids = tokens(answered.token_ids)
        assert ids[-1] == 2
        assert ids.count(2) == 1
        assert "<eos>" not in answered.text


def test_a_stop_string_is_removed_from_the_text_but_not_the_tokens(writer: Path) -> None:
    # Given an answer, and two characters in the middle of it
    engine = serving(writer)
    whole = body(engine, call(said="2 + 2?", max_tokens=40))
    stop = whole.text[5:7]

    # When it is sampled again with these as stop string
    answered = body(engine, call(said="2 + 2?", max_tokens=40, stop=("never", stop)))

    # Then it ends with them
    end = whole.text.index(stop)
    assert answered.finish_reason == "stop"
    assert answered.text == whole.text[:end]
    assert (whole.stopped_by, answered.stopped_by) == ("", stop)
    assert whole.token_ids.startswith(answered.token_ids)
    decoded = engine.policy.tokenizer.decode(tokens(answered.token_ids), skip_special_tokens=True)
    assert decoded == whole.text[:end] + stop


def test_the_next_turn_closes_a_truncated_answer(writer: Path) -> None:
    engine = serving(writer)
    first = call(said="hi", max_tokens=2)
    cut = body(engine, first)

    second = body(engine, next_turn(first, cut, "go"))
    ended = body(
        engine, call("r1", said="go", prefix=after(first, cut) + pack_ids([2]), max_tokens=2)
    )

    decode = engine.policy.tokenizer.decode
    assert cut.finish_reason == "length"
    assert decode(tokens(second.added_ids)) == "<eos>go<a>"
    assert decode(tokens(ended.added_ids)) == "go<a>"


def test_a_call_without_new_messages_continues_a_truncated_answer(lake: Path) -> None:
    # The noise belongs to the place in the call, so only likeliest tokens can be compared.
    engine = serving(lake)
    whole = body(engine, call(max_tokens=6, temperature=0.0))
    first = call(max_tokens=2, temperature=0.0)
    cut = body(engine, first)

    rest = body(
        engine, call(position=1, said=(), prefix=after(first, cut), max_tokens=4, temperature=0.0)
    )

    assert rest.added_ids == b""
    assert cut.token_ids + rest.token_ids == whole.token_ids


def test_the_next_turn_feeds_only_new_tokens(lake: Path) -> None:
    engine = serving(lake)
    first = call(said="s1 " * 30, max_tokens=3)
    answered = body(engine, first)
    before = engine.fed_tokens

    body(engine, next_turn(first, answered, "s2"))

    # The last sampled token, s2 and the opening of the answer.
    assert engine.fed_tokens - before == 3


def test_answers_are_the_same_without_a_prefix_cache(lake: Path) -> None:
    kept, unkept = serving(lake), serving(lake, max_cache_bytes=0)
    first = call(said="s1 " * 20, max_tokens=3)
    answered = body(kept, first)
    second = next_turn(first, answered, "s2", max_tokens=5)

    assert body(unkept, first).token_ids == answered.token_ids
    assert body(unkept, second).token_ids == body(kept, second).token_ids
    assert unkept.fed_tokens > kept.fed_tokens


def test_waiting_siblings_feed_their_short_prompts_once(family: Path) -> None:
    # Given groups of four with prompts of three lengths, all below the one that is kept for later
    engine, model = serving(family), weighted(family, 0)
    prompts = ["s1 " * 3, "s2 " * 20, "s3 s4"]
    calls = [
        call(f"{words[:2]}-{n}", said=words, max_tokens=3) for n in range(4) for words in prompts
    ]
    alone = [body(serving(family), one).token_ids for one in calls]

    # When they come at the same time, while another call is in the middle of its answer
    engine.add(call("before", said="s1 " * 3, max_tokens=9))
    engine.step()
    before = engine.fed_tokens
    for one in calls:
        engine.add(one)
    engine.step()

    # Then each prompt is read once, and the answers are those of calls that came alone
    lengths = sum(len(["<bos>", "<a>", *words.split()]) for words in prompts)
    assert engine.fed_tokens - before == 1 + lengths
    answers = {answer.call.command_id: answer.body for answer in run(engine)}
    for one, expected in zip(calls, alone, strict=True):
        answered = answers[one.command_id]
        assert isinstance(answered, ModelAnswered)
        assert answered.token_ids == expected
        assert_scored_by(model, one, answered)


def test_siblings_with_one_long_prompt_feed_it_once(writer: Path) -> None:
    # Given a prompt that takes more than one step
    engine, model = serving(writer), weighted(writer, 0)
    said = "x y" * CHUNK
    said = said[: CHUNK + 100]

    # When eight siblings ask it at the same time
    answers = run(engine, *(call(f"r{n}", said=said, max_tokens=4) for n in range(8)))

    # Then one feeds it and the others use its keys
    prompt = 1 + len(said) + 1
    assert len(answers) == 8
    assert prompt <= engine.fed_tokens <= prompt + 8 * 4
    for answer in answers[::7]:
        assert_scored_by(model, answer.call, answer.body)


def test_calls_beyond_a_full_batch_wait_their_turn(lake: Path) -> None:
    wide, narrow = serving(lake), serving(lake, max_batch=2)
    calls = [call(f"r{n}", said=f"s{n}", max_tokens=1 + n) for n in range(7)]

    in_one, by_two = run(wide, *calls), run(narrow, *calls)

    assert [a.body.token_ids for a in in_one] == [a.body.token_ids for a in by_two]


def test_an_aborted_call_does_not_disturb_the_others(lake: Path) -> None:
    calls = [call(f"r{n}", said=f"s{n}", max_tokens=9) for n in range(4)]
    undisturbed = {a.call.rollout_id: a.body for a in run(serving(lake), *calls)}

    engine = serving(lake)
    for one in calls:
        engine.add(one)
    engine.step()
    engine.abort("r1", 1)
    answers = run(engine)

    assert sorted(answer.call.rollout_id for answer in answers) == ["r0", "r2", "r3"]
    for answer in answers:
        assert answer.body.token_ids == undisturbed[answer.call.rollout_id].token_ids


def test_the_lake_policy_reads_and_writes_words(lake: Path) -> None:
    engine = serving(lake)
    first = call(said="s7")
    answered = body(engine, first)
    second = body(engine, next_turn(first, answered, "no s7"))

    assert tokens(answered.added_ids) == [0, 14, 1]
    assert tokens(second.added_ids) == [6, 14, 1]
    assert answered.text == engine.policy.tokenizer.convert_ids_to_tokens(
        tokens(answered.token_ids)[0]
    )


def test_a_new_sequence_may_start_with_an_old_conversation(lake: Path) -> None:
    history = (Message("user", "s7"), Message("assistant", "L"), Message("user", "s6"))

    answered = body(serving(lake), call(said=history, sequence=1))

    assert ids_of(answered.added_ids).tolist() == [0, 14, 1, 2, 13, 1]
    assert answered.sequence == 1
