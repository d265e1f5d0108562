"""`rollcall algorithms`: every rule that a recipe can choose by name."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from rollcall.compose.extras import require

if TYPE_CHECKING:
    from rollcall.schemas.rules import Rule


def algorithms(
    kind: Annotated[str, typer.Argument(help="One kind of rule; default: all kinds.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """List the rules that a recipe chooses by name, with their needs, options and sources.

    Example: rollcall algorithms loss
    """
    require("torch", "transformers")
    from rollcall.compose.terminal import emit

    rows = rows_of(kind)
    emit(rows, lambda terminal: print_algorithms(terminal, rows), json=json)


COLUMNS = ("kind", "name", "stage", "needs", "options", "source")


@dataclass(frozen=True, slots=True)
class RuleRow:
    """One rule and its declaration."""

    kind: str
    name: str
    stage: str
    """The stage: G, F, C, R or T for generate, filter, control, replay, train."""
    needs: tuple[str, ...]
    options: Mapping[str, Any]
    """The defaults of its options."""
    source: str


def rules_by_kind() -> "Mapping[str, Mapping[str, Rule[Any]]]":
    from rollcall.producers.curators.curators import CURATORS
    from rollcall.trainer.rules.catalogue import KINDS

    return {"curator": CURATORS, **KINDS}


def rows_of(kind: str = "") -> list[RuleRow]:
    """Return all rules, or those of one kind. Raises Refused for an unknown kind."""
    from rollcall.schemas import names

    known = rules_by_kind()
    if kind and kind not in known:
        raise names.unknown_name("kind of rules", kind, known)
    kinds = [rules for each, rules in known.items() if kind in ("", each)]
    return [row_of(rule) for rules in kinds for _, rule in sorted(rules.items())]


def row_of(rule: "Rule[Any]") -> RuleRow:
    """Return the row of a rule."""
    from rollcall.schemas.rules import ChosenRule

    chosen = ChosenRule(rule, rule.options())
    needs = tuple(sorted(chosen.everything_needed))
    options = dataclasses.asdict(chosen.options)
    return RuleRow(rule.kind, rule.name, rule.stage, needs, options, rule.source)


def print_algorithms(terminal: Console, rows: Sequence[RuleRow]) -> None:
    """Print a row per rule: a table on a terminal, Markdown in a file or a pipe."""
    cells = [_cells(row) for row in rows]
    if not terminal.is_terminal:
        for line in (COLUMNS, ["---"] * len(COLUMNS), *cells):
            terminal.print(f"| {' | '.join(line)} |", soft_wrap=True)
        return
    table = Table(box=MARKDOWN)
    for name in COLUMNS:
        table.add_column(name)
    for each in cells:
        table.add_row(*each)
    terminal.print(table)


def _cells(row: RuleRow) -> tuple[str, ...]:
    options = ", ".join(f"{key} {_shown(value)}" for key, value in row.options.items())
    return row.kind, row.name, row.stage, ", ".join(row.needs), options, row.source


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
