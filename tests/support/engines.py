"""What some tests need of the machine, and what is said where it has it not."""

import os
import shutil
from typing import NoReturn

import pytest

REQUIRED = "REQUIRED_ENGINES"
"""Engines whose want is a failure, by name: CI installs them, and says so here."""

IMAGE = os.environ.get("BOX_TEST_IMAGE", "")
"""What containers are made of where an engine is there for the tests: `.ci/docker` names it."""


def has(program: str) -> bool:
    """Whether a program is installed."""
    return shutil.which(program) is not None


def left_out(engine: str, what: str) -> NoReturn:
    """Skip with a word on what for want of which engine; fail where CI has promised it."""
    told = f"left out for want of {engine}: {what}"
    if engine in os.environ.get(REQUIRED, "").split(","):
        pytest.fail(told)
    pytest.skip(told, allow_module_level=True)
