"""The examples and tables of the documentation page are correct."""

import json

import pytest

from rollcall.inference.chat import template_of
from rollcall.inference.dialects.routes import ROUTES
from rollcall.inference.tools import FORMATS, NONE
from tests.support.pages import PAGES, blocks

PAGE = "inference/README.md"


def test_the_example_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for program in blocks("python", PAGE):
        exec(program, {})

    assert capsys.readouterr().out == "helper 0 False\nHi 200\n"


class Writes:
    """A tokenizer of one token, which is whatever was last encoded."""

    def encode(self, text: str, **how: object) -> list[int]:
        self.text = text
        return [1]

    def decode(self, ids: list[int], **how: object) -> str:
        return self.text


def test_the_declared_template_of_the_page_can_be_made() -> None:
    (declared,) = blocks("json", PAGE)

    template = template_of(json.loads(declared)["template"], Writes())

    assert template.tool_format == "hermes"


def test_every_format_and_path_is_in_a_table_of_the_page() -> None:
    rows = {
        line.split("|")[1].strip().strip("`")
        for line in PAGES[PAGE].splitlines()
        if line[:1] == "|"
    }

    assert {*FORMATS, NONE, *ROUTES} <= rows
