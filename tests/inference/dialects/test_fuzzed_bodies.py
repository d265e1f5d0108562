"""Any body is refused, or read and answered: a dialect raises nothing else."""

import random

import orjson
import pytest

from rollcall.inference.dialects.dialect import Declined, ParsedRequest
from rollcall.inference.dialects.routes import ROUTES
from rollcall.schemas.agent_requests import requests_of, requests_text
from tests.support.dialect_server import reply_to
from tests.support.fuzzed_bodies import BODIES, EARLIER, SAID, changed, written

EVERY = 2500
"""Of bodies for each of the four paths."""


@pytest.mark.parametrize("path", ROUTES)
def test_a_mutated_body_is_refused_or_answered(path: str) -> None:
    rng = random.Random(path)
    dialect = ROUTES[path]
    read: list[ParsedRequest] = []
    refused: list[Declined] = []
    for _ in range(EVERY):
        value = BODIES[path]
        for _ in range(rng.choice([0, 1, 1, 1, 2, 5])):
            value = changed(value, rng)
        try:
            read.append(dialect.read(written(value, rng), ["policy"], EARLIER))
        except Declined as declined:
            refused.append(declined)

    assert min(len(read), len(refused)) > EVERY / 10
    assert all(400 <= one.status < 500 and len(str(one)) <= 1100 for one in refused)
    assert all(orjson.loads(dialect.error(one)) for one in refused)
    for request in read:
        assert requests_of(requests_text([request.request], []), {}) == (request.request,)
    for request in read[::10]:
        reply = reply_to(request.request, *[SAID] * request.request.n)
        assert orjson.loads(dialect.body(request, reply))
        assert dialect.events(request, reply)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"\xff",
        b"\x00",
        b'"\\ud800"',
        b"1" * 5000,
        b'{"messages":' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"messages":[' + b"5," * 200_000 + b"5]}",
        b'{"input":[' + b"{}," * 200_000 + b"{}]}",
    ],
    ids=range(12),
)
def test_hostile_bodies_are_refused(path: str, body: bytes) -> None:
    with pytest.raises(Declined):
        ROUTES[path].read(body, ["policy"], {})
