"""The table of rules matches the declarations of the rules and the trainer's README."""

import json
import re
import subprocess
import sys

import pytest

from rollcall.compose.cli.algorithms import rows_of, rules_by_kind
from rollcall.schemas.errors import Refused
from tests.support.command_line import ROOT

ROLLCALL = (sys.executable, "-m", "rollcall.compose.cli", "algorithms")


def test_every_rule_has_a_source_and_a_valid_stage() -> None:
    rows = rows_of()

    assert len(rows) == sum(len(rules) for rules in rules_by_kind().values())
    for row in rows:
        rule = rules_by_kind()[row.kind][row.name]
        assert (rule.kind, rule.name) == (row.kind, row.name)
        assert len(row.source) > 3, row
        assert row.stage in tuple("GFCRT"), row


def test_readme_contains_the_rows_that_the_command_prints() -> None:
    printed = subprocess.run(ROLLCALL, capture_output=True, text=True, check=True, cwd=ROOT).stdout

    told = lines_of(printed)
    page = lines_of((ROOT / "trainer" / "README.md").read_text())
    missing = [line for line in told if line not in page]
    assert not missing, "put these lines into the table of trainer/README.md"
    kinds = tuple(f"| {kind} |" for kind in rules_by_kind())
    assert [line for line in page if line.startswith(kinds)] == told[2:]


def lines_of(text: str) -> list[str]:
    """Rows of tables, with single spaces."""
    rows = [re.sub(r" +", " ", line.strip()) for line in text.splitlines()]
    return [re.sub(r"-+", "-", row) for row in rows if row.startswith("|")]


def test_one_kind_is_listed_as_json_with_defaults() -> None:
    command = (*ROLLCALL, "loss", "--json")
    rows = json.loads(subprocess.run(command, capture_output=True, check=True, cwd=ROOT).stdout)

    assert {row["kind"] for row in rows} == {"loss"}
    (gspo,) = [row for row in rows if row["name"] == "gspo"]
    assert gspo["options"] == {"low": 3e-4, "high": 4e-4, "dual": 0.0}


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(Refused, match="unknown kind of rules 'los'; did you mean 'loss'"):
        rows_of("los")
