"""A test that no timeout can stop is named, for every kind of hang."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CONFTEST = """
from tests.support.watchdog import Watchdog


def pytest_configure(config):
    config.pluginmanager.register(Watchdog(config, grace_s=0.2))
"""
DEAF = """
import ctypes
import signal

import pytest


@pytest.mark.timeout(0.2)
def test_deaf():
    signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGALRM}})
    while True:
        ctypes.{how}(None).pause()


def test_after_it():
    pass
"""
SWALLOWED = """
import time

import pytest


@pytest.mark.timeout(0.2)
def test_deaf():
    while True:
        try:
            time.sleep(60)
        except BaseException:
            continue


def test_after_it():
    pass
"""


# A PyDLL keeps the interpreter's lock.
@pytest.mark.parametrize(
    "module", [DEAF.format(how="CDLL"), DEAF.format(how="PyDLL"), SWALLOWED], ids=range(3)
)
def test_hanging_test_is_named_and_the_others_continue(tmp_path: Path, module: str) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(module)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\ntimeout = 100\n")

    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "1", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, timeout=100,
    )  # fmt: skip

    assert ended.returncode == 1
    assert "answers nobody\n  wchan: " in ended.stderr
    assert "in test_deaf" in ended.stderr
    assert "crashed while running 'test_it.py::test_deaf'" in ended.stdout
    assert "1 failed, 1 passed" in ended.stdout
