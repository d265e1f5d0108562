"""A page loses no character, however narrow the terminal is."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from rollcall.compose.cli.algorithms import print_algorithms, rows_of
from rollcall.compose.console import MOST_CHARS, PageConsole

IDS = st.from_regex(r"[a-z0-9][a-z0-9/_.-]{0,60}", fullmatch=True)
TEXTS = st.lists(IDS, max_size=6).map(" ".join)


def printed(table: Table, width: int, *, terminal: bool = True) -> str:
    out = io.StringIO()
    PageConsole(file=out, width=width, highlight=False, force_terminal=terminal).print(table)
    return re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())


@given(
    st.lists(st.tuples(IDS, TEXTS, TEXTS), min_size=1, max_size=4),
    st.sampled_from([20, 40, 60, 80, 240]),
    st.booleans(),
)
def test_words_in_cells_are_never_split_across_lines(
    rows: list[tuple[str, str, str]], width: int, boxed: bool
) -> None:
    table = Table("id", "what", "why") if boxed else Table("id", "what", "why", box=None)
    for row in rows:
        table.add_row(*row)

    said = printed(table, width)

    words = set(said.split())
    for row in rows:
        assert set(" ".join(row).split()) <= words, said
    assert "…" not in said


@given(st.integers(1, 40), st.sampled_from([40, 60, 80]))
def test_row_of_many_columns_becomes_a_block_of_lines(columns: int, width: int) -> None:
    names = [f"column_{number}" for number in range(columns)]
    table = Table(*names)
    table.add_row(*(f"value-{number}" for number in range(columns)))

    lines = printed(table, width).splitlines()

    if 11 * columns > width:
        assert [line.split() for line in lines if line] == [
            [name, f"value-{number}"] for number, name in enumerate(names)
        ]


def test_cut_cell_says_how_much_was_cut() -> None:
    table = Table("id", "record")
    table.add_row("r-1", "x" * (MOST_CHARS + 5))

    said = printed(table, 80)

    assert f"(the first {MOST_CHARS:,} of {MOST_CHARS + 5:,} characters; --json prints all)" in said


def test_title_and_caption_stay_with_the_blocks() -> None:
    table = Table("id", "record", title="two rows", caption="and no more")
    table.add_row("r" * 50, "x" * 50)

    lines = printed(table, 60).splitlines()

    assert (lines[0], lines[-1]) == ("two rows", "and no more")


@pytest.mark.parametrize("width", [60, 80])
def test_rule_names_are_shown_whole(width: int) -> None:
    rows = rows_of()
    out = io.StringIO()

    console = PageConsole(file=out, width=width, force_terminal=True, color_system=None)
    print_algorithms(console, rows)

    words = set(out.getvalue().split())
    assert {row.name for row in rows} <= words
