"""Restart of a worker's loop whose object store is unreachable, without ending the process."""

import faulthandler
import time
from collections.abc import Callable

import structlog

from rollcall.consumers.loop.loop import Loop
from rollcall.schemas.errors import Unavailable

RETRY_S = 5.0

log = structlog.get_logger()


def run_with_restarts(
    begin: Callable[[], Loop],
    stopping: Callable[[], bool],
    *,
    patient: Callable[[], bool] = lambda: False,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Run a loop until told to stop; after Unavailable, end it and make a new one."""
    said = ""
    while not stopping():
        loop: Loop | None = None
        try:
            loop = begin()
            loop.run(stopping, patient=patient)
        except Unavailable as error:
            if str(error) != said:
                log.warning("worker_restarts_later", error=str(error), retry_s=RETRY_S)
            said = str(error)
            if loop is not None:
                _let_go(loop)
            pause(RETRY_S)


def _let_go(loop: Loop) -> None:
    """Leave the group; finished work is committed, and no record is blamed for the failure."""
    faulthandler.cancel_dump_traceback_later()
    loop.source.close()
    loop.role.close()
