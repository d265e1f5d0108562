"""What is printed for people: pages of tables, and pipes whose reader has gone."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 240


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
    from rich.console import Console

    wide = None if sys.stdout.isatty() else WIDE
    terminal = Console(highlight=False, width=wide)
    with terminal.capture() as written:
        yield terminal
    with quiet_pipes():
        print("\n".join(line.rstrip() for line in written.get().splitlines()))
