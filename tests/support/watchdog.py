"""Ends a test process whose main thread no timeout reaches.

pytest-timeout raises in the main thread, which must come back into Python for that: one that a
client, a kernel or a lock of C's keeps for ever is deaf to it, and so would be the whole run,
without a word, until whoever waits for it gives up. This names the test and all stacks and ends
the process; xdist then reports the test that crashed its worker, and goes on in another.
"""

import faulthandler
import os
import sys
import threading
import time
from typing import Any

import pytest

GRACE_S = 60.0
"""Beyond a test's own timeout: by then whoever can notice that has noticed."""
LOOK_EVERY_S = 1.0
EXIT_CODE = 70


class Watchdog:
    """A plugin of pytest, told by pytest-timeout when a test begins and ends.

    `grace_s` is how much longer than its timeout a test may take.
    """

    def __init__(self, config: pytest.Config, grace_s: float = GRACE_S) -> None:
        self._config, self._grace_s = config, grace_s
        self._watched: tuple[float, str] | None = None
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> None:
        """None: the next plugin, pytest-timeout itself, sets its own."""
        self._watched = time.monotonic() + settings.timeout + self._grace_s, item.nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> None:
        self._watched = None

    def _watch(self) -> None:
        while True:
            time.sleep(min(LOOK_EVERY_S, self._grace_s))
            watched = self._watched
            if watched is not None and time.monotonic() > watched[0]:
                self._give_up(watched[1])

    def _give_up(self, test: str) -> None:
        capture = self._config.pluginmanager.getplugin("capturemanager")
        if capture is not None:
            capture.suspend_global_capture(in_=True)
        print(f"{test} is deaf to its timeout; its process ends", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
        os._exit(EXIT_CODE)
