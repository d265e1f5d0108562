"""Distinguish Ctrl-C from user code that raises KeyboardInterrupt.

User code may run on the main thread, where the exception of a signal arises inside it like its own.
With the handler of this module the two differ. With Python's own handler they do not, and a
KeyboardInterrupt is taken for Ctrl-C.
"""

import signal
import threading
from types import FrameType
from typing import NoReturn


class Interrupted(KeyboardInterrupt):
    """Ctrl-C; code that guards against errors of user code lets it pass."""


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Handle SIGINT."""
    del number, frame
    raise Interrupted


def is_from_outside(error: BaseException) -> bool:
    """Return True if a person interrupted this process, False if user code raised it."""
    if not isinstance(error, KeyboardInterrupt):
        return False
    if threading.current_thread() is not threading.main_thread():
        return False  # Python delivers signals to the main thread only
    default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return default or isinstance(error, Interrupted)


def tell_apart() -> None:
    """Install the handler, unless the process ignores Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
