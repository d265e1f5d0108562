"""Any program, in place of this process: where to ask stands in its environment.

It finds its task as JSON in `task.json`, in its HOME: the directory that it is started in, but for
one that lives in the box of its task.
"""

import json
import os
from pathlib import Path
from typing import Any, NoReturn


def prepare() -> None:
    """Nothing to import: its interpreter's start is its own affair."""


def run(task: dict[str, Any], url: str, key: str) -> NoReturn:
    Path(os.environ["HOME"], "task.json").write_text(json.dumps(task))
    argv = task["config"]["argv"]
    os.execvp(argv[0], argv)
