"""The terminal for tables and panels; control sequences in the shown texts have no effect."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from rollcall.schemas.untrusted_text import printable


def safe(text: str, style: str = "") -> Text:
    """Escape untrusted text; rich would silently drop a bell or a carriage return from it."""
    return Text(printable(text), style=style)


class PlainConsole(Console):
    """A console without markup, in which control characters and marks of direction are escaped.

    Ids, reasons and names are untrusted. Every text passes here, including table cells and
    styled `Text`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False} | options, markup=False, emoji=False)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as a console does, but leave the wrapping of text lines to the terminal.

        An id in a line that rich wraps could not be copied whole.
        """
        if all(isinstance(each, str | Text) for each in objects):
            options = {"soft_wrap": True} | options
        super().print(*objects, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text, escaped before rich silently drops some control characters."""
        return super().render_str(printable(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of the output, each escaped."""
        for piece in super().render(renderable, options):
            if piece.control:
                yield piece
            else:
                yield Segment(printable(piece.text), piece.style)
