"""Token ids and log-probabilities from a server are checked, or the call fails by name."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall.compose.settings import ModelsSettings, OpenAISettings
from rollcall.compose.workers.engines import server_engine
from rollcall.inference.openai_api import TokenCompletions
from rollcall.inference.policy_dir import load_template, vocabulary_of
from rollcall.inference.reported_tokens import LEAST, InvalidReport
from rollcall.schemas.packed import logprobs_of
from tests.support.openai_mock import MockServer, chat, sampled, serving
from tests.support.policies import body, call, failure, tokens
from tests.support.tiers import examples

D, U = 3, 5
KEY = "sk-very-secret"
IDS = st.lists(st.integers(0, 31), min_size=1, max_size=5)
POSSIBLE = st.floats(LEAST, 0, width=32) | st.just(2**-11)  # and a rounding error
ABSURD = st.one_of(
    st.sampled_from([math.nan, math.inf, -math.inf, -9999.0, -1e9, 10**400, -(10**400), 0.5, 7]),
    st.floats(min_value=0.0625, width=32),
    st.floats(max_value=LEAST - 1, width=32),
    st.none() | st.booleans() | st.text(max_size=3) | st.just([-0.1]) | st.just({"logprob": -0.1}),
)
NO_ID = st.one_of(
    st.integers(max_value=-1),
    st.integers(min_value=32),
    st.none() | st.booleans() | st.text(max_size=3) | st.floats(0, 31) | st.just([3]),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def api(lake: Path) -> TokenCompletions:
    tokenizer, template = load_template(lake)
    return TokenCompletions("m", {}, tokenizer, template, vocabulary_of(lake, tokenizer))


def answered(api: TokenCompletions, text: str, ids: Any, **choice: Any) -> Any:
    """Return the answer that the API reads from a payload."""
    asked = api.request_for(call("r", max_tokens=8))
    payload = sampled(asked.body, text, ids if isinstance(ids, list) else [], **choice)
    payload["choices"][0]["token_ids"] = ids
    return api.read_answer(asked, json.loads(json.dumps(payload)))


def spelled(api: TokenCompletions, ids: list[int]) -> str:
    return str(api._tokenizer.decode(ids))


@given(ids=IDS, data=st.data())
def test_possible_logprobs_are_accepted_unchanged(
    api: TokenCompletions, ids: list[int], data: st.DataObject
) -> None:
    told = data.draw(st.lists(POSSIBLE, min_size=len(ids), max_size=len(ids)))

    made = answered(api, spelled(api, ids), ids, logprobs={"token_logprobs": told})

    assert (made.untrainable, tokens(made.token_ids)) == ("", ids)
    assert logprobs_of(made.logprobs).tolist() == told


@given(ids=IDS, harm=ABSURD, data=st.data())
def test_one_impossible_logprob_fails_the_call_and_is_located(
    api: TokenCompletions, ids: list[int], harm: Any, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(ids) - 1))
    told = [-0.1] * at + [harm] + [-0.1] * (len(ids) - at - 1)

    with pytest.raises(InvalidReport, match=rf"token_logprobs\[{at}\] of {len(ids)} is") as caught:
        answered(api, spelled(api, ids), ids, logprobs={"token_logprobs": told})
    assert caught.value.code == "bad_logprobs"


@given(ids=IDS, count=st.integers(0, 9))
def test_a_wrong_number_of_logprobs_fails_the_call(
    api: TokenCompletions, ids: list[int], count: int
) -> None:
    held = {"token_logprobs": [-0.1] * count}
    if count == len(ids):
        assert not answered(api, spelled(api, ids), ids, logprobs=held).untrainable
        return

    with pytest.raises(InvalidReport, match=f"tells {count} of them for {len(ids)} token ids"):
        answered(api, spelled(api, ids), ids, logprobs=held)


@given(ids=IDS, harm=NO_ID, data=st.data())
def test_an_unknown_token_id_fails_the_call_and_is_located(
    api: TokenCompletions, ids: list[int], harm: Any, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(ids)))

    with pytest.raises(InvalidReport, match=rf"token_ids\[{at}\] is .* has ids 0 to 31") as caught:
        answered(api, spelled(api, ids), [*ids[:at], harm, *ids[at:]])
    assert caught.value.code == "bad_token_ids"


@given(ids=IDS, others=IDS)
def test_ids_that_do_not_decode_to_the_text_fail_the_call(
    api: TokenCompletions, ids: list[int], others: list[int]
) -> None:
    text, other = spelled(api, ids), spelled(api, others)
    if "".join(text.split()) in "".join(other.split()):
        assert not answered(api, text, others).untrainable
        return

    with pytest.raises(InvalidReport, match="token ids spell"):
        answered(api, text, others)


@settings(max_examples=examples(50))
@given(ids=JSON, held=JSON)
def test_arbitrary_json_as_ids_or_logprobs_is_refused(
    api: TokenCompletions, ids: Any, held: Any
) -> None:
    for logprobs in (held, {"token_logprobs": held}):
        if ids is None:
            assert answered(api, "D", ids, logprobs=logprobs).untrainable == "no_token_ids"
            continue
        with pytest.raises(InvalidReport, match=r"^told (token ids|log-prob)") as caught:
            answered(api, "D", ids, logprobs=logprobs)
        assert len(str(caught.value)) < 600


def test_more_ids_than_requested_fail_the_call(api: TokenCompletions) -> None:
    with pytest.raises(InvalidReport, match="token_ids has 9 ids, asked for were 8 at most"):
        answered(api, "D " * 9, [D] * 9)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("D", [D, U]),  # cut at a stop string
        ("", [D, U]),
        ("D<bos>", [D, 0]),  # with special tokens, and without
        ("D", [D, 0]),
        (" D\n U", [D, U]),
        ("D\N{REPLACEMENT CHARACTER}", [D]),  # half a character
    ],
)
def test_text_may_lack_parts_that_servers_omit(
    api: TokenCompletions, text: str, ids: list[int]
) -> None:
    assert answered(api, text, ids).untrainable == ""


@pytest.fixture(scope="module")
def server() -> Iterator[MockServer]:
    with serving(lambda path, asked: chat()) as server:
        yield server


def asking(server: MockServer, lake: Path, **extra: Any) -> Any:
    options = OpenAISettings(
        base_url=server.url, model="m", api="completions", api_key_env="MY_KEY", body=extra
    )
    server.asked.clear()
    return server_engine("policy", lake, ModelsSettings(openai=options))


@pytest.mark.parametrize(
    ("choice", "code"),
    [
        ({"logprobs": None}, "bad_logprobs"),
        ({"logprobs": {"token_logprobs": [math.nan]}}, "bad_logprobs"),
        ({"token_ids": [32]}, "bad_token_ids"),
        ({"token_ids": [KEY]}, "bad_token_ids"),
    ],
)
def test_the_error_is_permanent_names_the_server_and_hides_the_key(
    server: MockServer, lake: Path, monkeypatch: pytest.MonkeyPatch, choice: Any, code: str
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    server.speak = lambda path, asked: sampled(asked, "D", [D], **choice)

    failed = failure(asking(server, lake), call())

    assert (failed.code, failed.retriable, len(server.asked)) == (code, False, 1)
    assert failed.message.startswith(f"the server at {server.url} told ")
    assert "\n" not in failed.message
    assert KEY not in failed.message


def test_logprobs_may_be_missing_if_not_requested(
    server: MockServer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    server.speak = lambda path, asked: sampled(asked, "D", [D], logprobs=None)

    made = body(asking(server, lake, logprobs=False), call())

    assert (made.text, made.untrainable) == ("D", "no_logprobs")
