"""Any program, which replaces this process and finds its endpoint in environment variables.

Its task is in `task.json` in its HOME, which is also the directory that it starts in, unless it
runs in the box of its task.
"""

import json
import os
from pathlib import Path
from typing import Any, NoReturn


def prepare() -> None:
    """Do nothing: the program starts its own interpreter."""


def run(task: dict[str, Any], url: str, key: str) -> NoReturn:
    Path(os.environ["HOME"], "task.json").write_text(json.dumps(task))
    argv = task["config"]["argv"]
    os.execvp(argv[0], argv)
