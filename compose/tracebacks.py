"""Tracebacks of uncaught exceptions, without the secrets of settings."""

import sys
import threading
import traceback
from types import TracebackType

from rollcall.schemas.redaction import redact


def hide_in_tracebacks() -> None:
    """Hide the secrets of settings in tracebacks of uncaught exceptions, in any thread."""
    sys.excepthook = _tell
    threading.excepthook = _tell_of_thread


def _tell(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> None:
    sys.stderr.write(redact("".join(traceback.format_exception(kind, error, trace))))


def _tell_of_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is SystemExit:
        return
    name = args.thread.name if args.thread else "a thread"
    sys.stderr.write(f"Exception in {name}:\n")
    _tell(args.exc_type, args.exc_value, args.exc_traceback)
