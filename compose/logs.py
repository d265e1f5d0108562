"""Logging for a process: JSON when nobody watches, every line with role and worker."""

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
    readable = out.isatty()
    renderer = structlog.dev.ConsoleRenderer() if readable else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks,
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(role=role, worker=worker, pid=os.getpid())
