"""A function in a file of the user's, called with (task, url, key).

What it returns is handed in as the result, unless that is None. Modules beside its file are found.
"""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Function = Callable[[dict[str, Any], str, str], object]
FUNCTIONS: list[Function] = []


def prepare(function: str) -> None:
    """Import `/file.py:function`; raises what importing the file raises, or AttributeError."""
    file, _, name = function.rpartition(":")
    path = Path(file)
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    FUNCTIONS.append(getattr(module, name))


def run(task: dict[str, Any], url: str, key: str) -> object:
    return FUNCTIONS[0](task, url, key)
