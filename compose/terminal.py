"""Printing of results: pages of tables, JSON, and pipes whose reader has gone."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rollcall.schemas.redaction import redact
from rollcall.schemas.untrusted_text import printable, printable_json

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 240


def emit(
    result: object, show: "Callable[[Console], None]", *, json: bool, one_line: bool = False
) -> None:
    """Print a result: as a page that `show` draws, or as JSON."""
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
        print(printable_json(redact(orjson.dumps(result, option=options).decode())))


@contextmanager
def quiet_pipes() -> Iterator[None]:
    """Exit silently if the reader of our output has gone."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Buffered output is still written when the interpreter ends; it needs a valid target.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def page() -> Iterator["Console"]:
    """Yield a terminal for tables, printed at the end; wide if it is a file or a pipe."""
    from rollcall.compose.console import PageConsole

    wide = None if sys.stdout.isatty() else WIDE
    terminal = PageConsole(highlight=False, width=wide)
    with terminal.capture() as written:
        yield terminal
    with quiet_pipes():
        shown = redact(written.get())
        print("\n".join(line.rstrip() for line in shown.splitlines()))


def called() -> str:
    """Return how this command was called, for messages that suggest another command."""
    is_module = Path(sys.argv[0]).name == "__main__.py"
    program = Path(sys.executable if is_module else sys.argv[0]).absolute()
    nearby = program.is_relative_to(Path.cwd())
    name = str(program.relative_to(Path.cwd()) if nearby else program.name)
    return f"{name} -m rollcall" if is_module else name


def say(text: object = "", *, err: bool = False) -> None:
    """Print a line of a command, with control sequences escaped."""
    import typer

    typer.echo(printable(str(text)), err=err)


def one_line(text: str) -> str:
    """Return the text with control sequences and line ends escaped."""
    return "".join(c if c.isprintable() else " " for c in text)
