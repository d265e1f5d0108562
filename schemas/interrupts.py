"""Tell Ctrl-C from user code that raises KeyboardInterrupt.

Code of others runs on the main thread, where a signal's exception comes up inside it like its own.
A process that installs this handler can tell the two apart; under Python's own handler nobody can,
and there a KeyboardInterrupt is taken for the person's.
"""

import signal
import threading
from types import FrameType
from typing import NoReturn


class Interrupted(KeyboardInterrupt):
    """Ctrl-C: it passes every wall around foreign code."""


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """A handler of SIGINT."""
    del number, frame
    raise Interrupted


def is_from_outside(error: BaseException) -> bool:
    """Return True if a person interrupted this process, False if user code raised it."""
    if not isinstance(error, KeyboardInterrupt):
        return False
    if threading.current_thread() is not threading.main_thread():
        return False  # no signal ever gets there
    default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return default or isinstance(error, Interrupted)


def tell_apart() -> None:
    """Install the handler; a process that was told to ignore Ctrl-C goes on ignoring it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
