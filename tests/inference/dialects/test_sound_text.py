"""Text that UTF-8 cannot encode is replaced in a body, and nothing else is changed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.inference.dialects.dialect import Declined
from rollcall.inference.dialects.read_body import MOST_MESSAGES
from rollcall.inference.dialects.routes import ROUTES
from rollcall.inference.dialects.surrogate_repair import replace_surrogates

ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SURROGATES = st.text(st.characters(categories=["Cs", "Ll", "Po"]), max_size=8)
CHAT = "/v1/chat/completions"


@given(st.recursive(ANY, lambda each: st.lists(each) | st.dictionaries(ANY, each), max_leaves=8))
def test_a_valid_body_is_unchanged(value: object) -> None:
    for ascii_ in (False, True):
        body = json.dumps(value, ensure_ascii=ascii_).encode()
        assert json.loads(replace_surrogates(body)) == value


@given(SURROGATES)
def test_only_lone_surrogates_are_replaced(text: str) -> None:
    body = json.dumps({"a": text, text: "\\ud800"}).encode()
    wanted = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    read = json.loads(replace_surrogates(body))

    assert read["a"].encode() == wanted.encode()
    assert "\\ud800" in read.values()


@given(st.binary(max_size=30))
def test_invalid_utf8_bytes_are_replaced(raw: bytes) -> None:
    replace_surrogates(b'"' + raw.replace(b'"', b"").replace(b"\\", b"") + b'"').decode()


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/responses"])
def test_every_dialect_accepts_a_message_with_a_cut_character(path: str) -> None:
    said = {"role": "user", "content": "x \ud83d y"}
    key = "input" if path == "/v1/responses" else "messages"
    body = json.dumps({"model": "p", "max_tokens": 5, key: [said]}).encode()

    read = ROUTES[path].read(body, ["p"], {})

    assert read.request.messages[-1].content == "x \N{REPLACEMENT CHARACTER} y"


def test_a_body_of_too_many_messages_is_declined_before_parsing() -> None:
    one = b'{"role":"user","content":"a"}'
    body = b'{"model":"p","messages":[' + b",".join([one] * (MOST_MESSAGES + 1)) + b"]}"

    with pytest.raises(Declined, match=r"^messages .*20000"):
        ROUTES[CHAT].read(body, ["p"], {})
