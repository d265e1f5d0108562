"""The terminal for tables and panels: it obeys nothing in the texts that it shows."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from schemas.foreign_text import printable


def safe(text: str, style: str = "") -> Text:
    """A text of anybody's words. Rich would drop a bell or a return from it without a word."""
    return Text(printable(text), style=style)


class PlainConsole(Console):
    """A console without markup, in which control characters and marks of direction are escaped.

    Ids, reasons and names come from whoever wrote them. Every text passes here, also that of a
    cell of a table or of a styled `Text`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False} | options, markup=False, emoji=False)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print what any console prints; lines of text are the terminal's to break, not ours.

        A line that rich breaks holds no id that one could copy whole.
        """
        if all(isinstance(each, str | Text) for each in objects):
            options = {"soft_wrap": True} | options
        super().print(*objects, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """The text, escaped before rich drops some of its control characters without a word."""
        return super().render_str(printable(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The pieces of what is shown, each fit to be shown."""
        for piece in super().render(renderable, options):
            if piece.control:
                yield piece
            else:
                yield Segment(printable(piece.text), piece.style)
