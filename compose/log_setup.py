"""Logging for a process: readable on a terminal, else JSON, every line with role and worker."""

import logging
import os
import sys
from typing import TextIO

import structlog


def set_up(role: str, worker: str, out: TextIO | None = None) -> None:
    """Configure structlog once, for stderr unless said otherwise; libraries' own logging goes there
    too, from warnings on.
    """
    out = out or sys.stderr
    logging.basicConfig(level=logging.WARNING, stream=out)
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            *(_for_people() if out.isatty() else _for_machines()),
        ],
        logger_factory=structlog.PrintLoggerFactory(out),
    )
    structlog.contextvars.bind_contextvars(role=role, worker=worker, pid=os.getpid())


def _for_people() -> list[structlog.typing.Processor]:
    """The time of day, the event, its fields; a traceback as Python shows it."""
    return [
        structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]


def _for_machines() -> list[structlog.typing.Processor]:
    return [
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.dict_tracebacks,
        structlog.processors.JSONRenderer(),
    ]
