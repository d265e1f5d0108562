"""The terminal for tables and panels: it obeys nothing in the texts that it shows."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from schemas.foreign_text import printable


class PlainConsole(Console):
    """A console without markup, in which control characters and marks of direction are escaped.

    Ids, reasons and names come from whoever wrote them. Every text passes here, also that of a
    cell of a table or of a styled `Text`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False} | options, markup=False, emoji=False)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The pieces of what is shown, each fit to be shown."""
        for piece in super().render(renderable, options):
            if piece.control:
                yield piece
            else:
                yield Segment(printable(piece.text), piece.style)
