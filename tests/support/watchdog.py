"""Ends a test process that no timeout reaches.

pytest-timeout raises in the main thread, which must come back into Python for that: one that a
client keeps in C for ever is deaf to it, and where that client holds the interpreter's lock so is
every other thread. The whole run would stand still, without a word, until whoever waits for it
gives up. So another process watches. It has the stuck one abort, whereupon pytest's faulthandler
prints all stacks and xdist names the test.
"""

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

GRACE_S = 60.0
"""Beyond a test's own timeout: by then whoever can notice that has noticed."""
WATCHER = Path(__file__).with_name("watcher.py")


class Watchdog:
    """A plugin of pytest, told by pytest-timeout when a test begins and ends.

    `grace_s` is how much longer than its timeout a test may take.
    """

    def __init__(self, config: pytest.Config, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        command = [sys.executable, "-S", str(WATCHER), str(os.getpid())]
        capture: Any = config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture else nullcontext():
            # In a session of its own: Ctrl-C is for the tests.
            self._watcher = subprocess.Popen(
                command, stdin=subprocess.PIPE, bufsize=0, start_new_session=True
            )

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> None:
        """None: the next plugin, pytest-timeout itself, sets its own."""
        self._tell(settings.timeout + self._grace_s)

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> None:
        self._tell(0.0)

    def _tell(self, most_s: float) -> None:
        self._watcher.stdin.write(f"{most_s}\n".encode())

    def pytest_unconfigure(self) -> None:
        self._watcher.communicate()
