"""How results are printed: pages of tables, JSON, and pipes whose reader has gone."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.foreign_text import printable, printable_json
from schemas.hidden import without_secrets

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 240


def emit(
    result: object, show: "Callable[[Console], None]", *, json: bool, one_line: bool = False
) -> None:
    """Print a result: on a page, as `show` draws it, or as JSON."""
    if json:
        emit_json(result, one_line=one_line)
    else:
        with page() as terminal:
            show(terminal)


def emit_json(result: object, *, one_line: bool = False) -> None:
    """Print plain values and dataclasses as JSON, indented or on one line."""
    import orjson

    options = orjson.OPT_NON_STR_KEYS | (0 if one_line else orjson.OPT_INDENT_2)
    with quiet_pipes():
        print(printable_json(without_secrets(orjson.dumps(result, option=options).decode())))


@contextmanager
def quiet_pipes() -> Iterator[None]:
    """End without a word when whoever reads what we print has gone."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered is written when the interpreter ends; it must go somewhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def page() -> Iterator["Console"]:
    """A terminal to write tables to, printed at the end; wide where it is a file or a pipe."""
    from compose.page_console import PageConsole

    wide = None if sys.stdout.isatty() else WIDE
    terminal = PageConsole(highlight=False, width=wide)
    with terminal.capture() as written:
        yield terminal
    with quiet_pipes():
        shown = without_secrets(written.get())
        print("\n".join(line.rstrip() for line in shown.splitlines()))


def called() -> str:
    """How this command was called, for whoever is told to call another."""
    is_module = Path(sys.argv[0]).name == "__main__.py"
    program = Path(sys.executable if is_module else sys.argv[0]).absolute()
    nearby = program.is_relative_to(Path.cwd())
    name = str(program.relative_to(Path.cwd()) if nearby else program.name)
    return f"{name} -m compose.cli" if is_module else name


def say(text: object = "", *, err: bool = False) -> None:
    """Print a line of a command; of the texts in it a terminal obeys nothing."""
    import typer

    typer.echo(printable(str(text)), err=err)


def one_line(text: str) -> str:
    """The same, with no new line either."""
    return "".join(c if c.isprintable() else " " for c in text)
