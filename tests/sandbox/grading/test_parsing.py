"""Test output is parsed in a process with limits."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall.sandbox.grading import outcomes as parsing
from rollcall.sandbox.grading.outcomes import NotRead, parsed
from tests.support.tiers import examples


def hangs(text: str) -> dict[str, str]:
    while text:
        pass
    return {}


def grows(text: str) -> dict[str, str]:
    return {"a" * (1 << 40): text}


def raises(text: str) -> dict[str, str]:
    raise LookupError(text)


def test_text_is_parsed_in_a_subprocess() -> None:
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
def test_parser_error_is_raised_with_its_reason(parser: str, text: str, says: str) -> None:
    with pytest.raises(NotRead, match=says):
        asyncio.run(parsed(parser, text))


def test_hanging_parser_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "WALL_S", 3.0)

    with pytest.raises(NotRead, match="within 3 s"):
        asyncio.run(parsed(f"{__name__}:hangs", "x"))


@settings(max_examples=examples(10))
@given(st.text())
def test_any_text_can_be_sent_to_the_parser_process(text: str) -> None:
    assert asyncio.run(parsed("exit-code", text)).outcomes == {}
