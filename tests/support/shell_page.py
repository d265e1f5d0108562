"""The task for a shell that a page shows, and the policy that stands beside it."""

import json
from collections.abc import Callable
from typing import Any

from tests.support.pages import blocks

PAGE = "sandbox/README.md"


def shell_task() -> dict[str, Any]:
    """Environment and config."""
    tasks = map(json.loads, blocks("json", PAGE))
    return next(task for task in tasks if task["environment"] == "shell")


def count_red() -> Callable[[str], str]:
    """The policy, as a function of the conversation."""
    source = next(block for block in blocks("python", PAGE) if "def count_red(" in block)
    defined: dict[str, Any] = {}
    exec(source, defined)
    return defined["count_red"]  # type: ignore[no-any-return]
