import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from rollcall.compose.terminal import called, emit


@dataclass(frozen=True, slots=True)
class Share:
    name: str
    by_k: dict[int, float]


def test_result_is_drawn_on_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    emit(Share("a", {}), lambda terminal: terminal.print("a page  "), json=False)

    assert capsys.readouterr().out == "a page\n"


@pytest.mark.parametrize(
    ("one_line", "text"),
    [
        (True, '{"name":"a","by_k":{"1":0.5}}\n'),
        (False, '{\n  "name": "a",\n  "by_k": {\n    "1": 0.5\n  }\n}\n'),
    ],
)
def test_result_is_printed_as_json_on_request(
    one_line: bool, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    emit(Share("a", {1: 0.5}), lambda terminal: None, json=True, one_line=one_line)

    assert capsys.readouterr().out == text


@pytest.mark.parametrize(
    ("argv", "python", "told"),
    [
        (".venv/bin/rollcall", ".venv/bin/python", ".venv/bin/rollcall"),
        ("/elsewhere/bin/rollcall", "/elsewhere/bin/python", "rollcall"),
        ("compose/cli/__main__.py", ".venv/bin/python", ".venv/bin/python -m rollcall"),
        ("/there/compose/cli/__main__.py", "/usr/bin/python3", "python3 -m rollcall"),
    ],
)
def test_command_is_shown_the_way_it_was_called(
    argv: str, python: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [argv, "run"])
    monkeypatch.setattr(sys, "executable", str(tmp_path / python))

    assert called() == told
