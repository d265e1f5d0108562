"""What a patch prints is read in a process that ends."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.grading import parsing
from sandbox.grading.parsing import NotRead, parsed


def hangs(text: str) -> dict[str, str]:
    while text:
        pass
    return {}


def grows(text: str) -> dict[str, str]:
    return {"a" * (1 << 40): text}


def raises(text: str) -> dict[str, str]:
    raise LookupError(text)


def test_a_text_is_read_as_it_is_in_this_process() -> None:
    log = asyncio.run(parsed("tap", "1..2\nok 1 - a\nnot ok 2 - b\n"))

    assert log.outcomes == {"a": "PASSED", "b": "FAILED"}
    assert not log.wrong


@pytest.mark.parametrize(
    ("parser", "text", "says"),
    [
        (f"{__name__}:raises", "x", "raised"),
        (f"{__name__}:grows", "x", "Error"),
        ("nowhere:parser", "x", "nowhere"),
        ("unittest", "Ran " + "9" * 5_000 + " tests in 1s\nOK\n", "digits"),
    ],
)
def test_what_cannot_be_read_says_so(parser: str, text: str, says: str) -> None:
    with pytest.raises(NotRead, match=says):
        asyncio.run(parsed(parser, text))


def test_a_parser_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "WALL_S", 3.0)

    with pytest.raises(NotRead, match="within 3 s"):
        asyncio.run(parsed(f"{__name__}:hangs", "x"))


@settings(max_examples=10)
@given(st.text())
def test_every_text_comes_over_as_it_is(text: str) -> None:
    assert asyncio.run(parsed("exit-code", text)).outcomes == {}
