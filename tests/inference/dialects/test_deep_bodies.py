"""A body of nested JSON is read, or refused by the bound that it exceeds."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rollcall.consumers.environments.gateway.gateway import DIALECTS
from rollcall.inference.dialects.dialect import Declined, ParsedRequest
from rollcall.inference.dialects.read_body import MOST_DEEP
from rollcall.schemas.agent_requests import requests_of, requests_text
from tests.support.avro_messages import FEW

PATHS = pytest.mark.parametrize("path", DIALECTS)
OPEN, CLOSE = {"[": "[", "{": '{"a":'}, {"[": "]", "{": "}"}
FLAT = {
    "messages": [{"role": "user", "content": "x"}],
    "input": "x",
    "max_tokens": 5,
    "action": "x",
    "result": "x",
}
SPARE = 10
"""Levels of the places where what is deep stands."""
FUNCTION = '{"name":"f","parameters":DEEP}'
PLACES = {
    "/v1/chat/completions": f'"tools":[{{"type":"function","function":{FUNCTION}}}]',
    "/v1/responses": f'"tools":[{{"type":"function",{FUNCTION[1:]}]',
    "/v1/messages": '"tools":[{"name":"f","input_schema":DEEP}]',
    "/v1/messages/count_tokens": '"tools":[{"name":"f","input_schema":DEEP}]',
}


def read(path: str, deep: str, *, ignored: bool) -> ParsedRequest:
    """A body that contains this value in an ignored or in a used field."""
    field = '"unknown":DEEP' if ignored or path not in PLACES else PLACES[path]
    body = json.dumps(FLAT)[:-1] + "," + field.replace("DEEP", deep) + "}"
    return DIALECTS[path].read(body.encode(), ["policy"], {})


def nested(kinds: str) -> str:
    inner = "".join(OPEN[kind] for kind in kinds) + "1"
    outer = inner + "".join(CLOSE[kind] for kind in reversed(kinds))
    return '{"a":' + outer + "}"


@PATHS
@given(kinds=st.text(st.sampled_from("[{"), min_size=1, max_size=8), times=st.integers(1, 400))
@example(kinds="[", times=MOST_DEEP - SPARE)
@example(kinds="{", times=MOST_DEEP + 1)
@example(kinds="[{", times=100_000)
@FEW
def test_a_body_is_read_or_refused_as_too_deep(path: str, kinds: str, times: int) -> None:
    deep = (kinds * times)[:150_000]
    for ignored in (True, False):
        if len(deep) <= MOST_DEEP - SPARE:
            request = read(path, nested(deep), ignored=ignored).request
            assert requests_of(requests_text([request], []), {}) == (request,)
        elif len(deep) > MOST_DEEP:  # between, the few levels around it decide
            refused_as_too_deep(path, nested(deep), ignored=ignored)


def refused_as_too_deep(path: str, deep: str, *, ignored: bool) -> None:
    with pytest.raises(Declined, match=f"is nested more than {MOST_DEEP} deep at") as refused:
        read(path, deep, ignored=ignored)
    assert refused.value.status == 400
    assert "send JSON that is flatter" in str(refused.value)


@PATHS
def test_a_deep_unclosed_body_is_refused(path: str) -> None:
    for opened in OPEN.values():
        refused_as_too_deep(path, opened * 100_000, ignored=True)
