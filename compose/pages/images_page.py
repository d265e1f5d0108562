"""The text output of the images of boxes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from rollcall.compose.console import safe
from rollcall.compose.terminal import one_line

if TYPE_CHECKING:
    from rich.console import Console

    from rollcall.sandbox.boxes.image_rows import ImageRow

SHOWN = 12
"""The number of digits of a digest that are shown."""
MOST_PACKAGES = 5
KINDS = {"directory": "image", "layer": "layer", "engine": "docker"}


def print_images(terminal: "Console", rows: "Sequence[ImageRow]") -> None:
    """Print a line per image, those of an engine last."""
    heads = "kind", "name", "digest", "own size", "last used", "stands on", "used by", "packages"
    table = Table(*heads, box=None, pad_edge=False)
    table.columns[3].justify = "right"
    table.add_row("host", "host", "", "", "", "", "", "the programs of this host, read-only")
    for row in rows:
        table.add_row(
            KINDS[row.kind],
            safe(one_line(row.name)),
            row.digest[:SHOWN],
            megabytes(row.size_bytes),
            "" if row.idle_s is None else f"{row.idle_s / 3600:.1f} h ago",
            row.base,
            safe(one_line(", ".join(row.users))),
            _packages(row.packages),
        )
    terminal.print(table)


def _packages(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_PACKAGES} more" if len(names) > MOST_PACKAGES else ""
    return " ".join(names[:MOST_PACKAGES]) + more


def megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.0f} MB"
