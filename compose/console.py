"""The terminal for tables and panels; control sequences in the shown texts have no effect.

A `PageConsole` never truncates a table: it fits the width or becomes blocks of lines. In a table, a
word, such as an id to be copied, is never broken or shortened. If the words do not fit side by
side, every row becomes a block of lines, each with a name and a value.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Column, Table
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


MOST_CHARS = 2000
"""The most characters of a value in a block; the number left out is shown."""
MOST_FOLDED = 40
"""The most width that a folding column needs; its words may continue in the next line."""
NO_BOUND = 1_000_000


class PageConsole(PlainConsole):
    """A console that prints tables without truncating them."""

    def print(self, *objects: Any, **options: Any) -> None:
        if not any(isinstance(one, Table | Group) for one in objects):
            super().print(*objects, **options)
            return
        for one in objects:
            if isinstance(one, Table):
                self._print_table(one)
            elif isinstance(one, Group):  # lay out the tables in it too
                for part in one.renderables:
                    self.print(part, **options)
            else:
                super().print(one, **options)

    def _print_table(self, table: Table) -> None:
        spans = [self._span(column) for column in table.columns]
        unbound = self.options.update(width=NO_BOUND, max_width=NO_BOUND)
        frame = Measurement.get(self, unbound, table).maximum - sum(s.maximum for s in spans)
        room = self.width - frame
        if sum(span.minimum for span in spans) > room:
            for line in _blocks(self, table):
                super().print(line, soft_wrap=True, highlight=False)
            return
        for column, width in zip(table.columns, _shares(spans, room), strict=True):
            column.width = width
        around = (table.title, table.caption)
        table.title = table.caption = None  # rich would wrap them to the width of the table
        for one in (around[0], table, around[1]):
            if one is not None:
                super().print(one)

    def _span(self, column: Column) -> Measurement:
        """Return the least width of a column that breaks no word, and its natural width."""
        unbound = self.options.update(width=NO_BOUND, max_width=NO_BOUND)
        spans = [Measurement.get(self, unbound, cell) for cell in column.cells if cell]
        header = Measurement.get(self, unbound, column.header or "")
        widest = max((span.maximum for span in (header, *spans)), default=0)
        least = max((span.minimum for span in spans), default=0)
        if column.overflow == "fold":
            least = min(least, MOST_FOLDED)
        least = max(least, header.minimum)
        return Measurement(widest if column.no_wrap else least, widest)


def _shares(spans: Sequence[Measurement], room: int) -> list[int]:
    """Return a width per column: its least, plus a share of the rest, smallest needs first."""
    shares = [span.minimum for span in spans]
    left = room - sum(shares)
    wishes = sorted(range(len(spans)), key=lambda n: spans[n].maximum - shares[n])
    for place, number in enumerate(wishes):
        more = min(spans[number].maximum - shares[number], left // (len(wishes) - place))
        shares[number] += more
        left -= more
    return shares


def _blocks(terminal: Console, table: Table) -> Iterator[Text]:
    """Yield every row as lines, with an empty one after it."""
    names = [_text(terminal, column.header) for column in table.columns]
    width = max((name.cell_len for name in names), default=0)
    around = [_text(terminal, title) for title in (table.title, table.caption) if title]
    yield from around[: bool(table.title)]
    for row in zip(*(column.cells for column in table.columns), strict=True):
        for name, cell in zip(names, row, strict=True):
            value = _whole_or_told(_text(terminal, cell))
            if value.plain:
                gap = " " * (width - name.cell_len + 2)
                yield Text.assemble(name, gap, value) if width else value
        yield Text()
    yield from around[bool(table.title) :]


def _text(terminal: Console, cell: RenderableType | None) -> Text:
    """Return any cell as text."""
    if isinstance(cell, Text):
        return cell.copy()
    if isinstance(cell, str):
        return terminal.render_str(cell, highlight=False)
    unbound = terminal.options.update(width=terminal.width)
    return Text("".join(part.text for part in chain(terminal.render(cell or "", unbound))).strip())


def _whole_or_told(value: Text) -> Text:
    """Return the value, or its beginning and its length."""
    if len(value.plain) <= MOST_CHARS:
        return value
    told = f" ... (the first {MOST_CHARS:,} of {len(value.plain):,} characters; --json prints all)"
    return Text.assemble(value[:MOST_CHARS], told)
