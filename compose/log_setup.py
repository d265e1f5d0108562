"""Logging of a process: readable on a terminal, else JSON; every line has role and worker."""

import logging
import os
import sys
import threading
import traceback
from types import TracebackType
from typing import Any, TextIO

import structlog

from rollcall.schemas.redaction import redact
from rollcall.schemas.untrusted_text import printable


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


def set_up(role: str, worker: str, out: TextIO | None = None) -> None:
    """Configure structlog once, for stderr by default; libraries' own logging goes there too, from
    warnings on.
    """
    out = out or sys.stderr
    logging.basicConfig(level=logging.WARNING, stream=out)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_Hiding(logging.BASIC_FORMAT))
    hide_in_tracebacks()
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            *(_for_people() if out.isatty() else _for_machines()),
            _hidden,
        ],
        logger_factory=structlog.PrintLoggerFactory(out),
    )
    structlog.contextvars.bind_contextvars(role=role, worker=worker, pid=os.getpid())


class _Hiding(logging.Formatter):
    """A formatter that hides secrets in lines of libraries, which may quote URLs."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def _hidden(logger: object, name: str, line: Any) -> str:
    """Hide secrets in a line of ours; its fields may quote a library."""
    del logger, name
    return redact(str(line))


def _escaped(logger: object, name: str, fields: Any) -> Any:
    """Escape fields for a terminal, as they may be untrusted."""
    del logger, name
    return {
        key: printable(value) if isinstance(value, str) else value for key, value in fields.items()
    }


def _for_people() -> list[structlog.typing.Processor]:
    """Return the processors for a terminal: time of day, event, fields; a traceback as Python's."""
    return [
        structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
        _escaped,
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]


def _for_machines() -> list[structlog.typing.Processor]:
    return [
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.dict_tracebacks,
        structlog.processors.JSONRenderer(),
    ]
