"""`rollcall algorithms`: every rule that a recipe can choose by name."""

from typing import Annotated

import typer

from rollcall.compose.extras import require


def algorithms(
    kind: Annotated[str, typer.Argument(help="One kind of rule; default: all kinds.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """List the rules that a recipe chooses by name, with their needs, options and sources.

    Example: rollcall algorithms loss
    """
    require("torch", "transformers")
    from rollcall.compose.pages.algorithms_page import print_algorithms, rows_of
    from rollcall.compose.terminal import emit

    rows = rows_of(kind)
    emit(rows, lambda terminal: print_algorithms(terminal, rows), json=json)
