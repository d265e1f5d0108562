"""A function in a file of the user's, called with (task, url, key).

Its return value is submitted as the result, unless it is None. It can import modules beside it.
"""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Function = Callable[[dict[str, Any], str, str], object]
FUNCTIONS: list[Function] = []
SOURCES: list[str] = []
"""The user's files that were imported, without installed packages."""


def prepare(function: str) -> None:
    """Import `/file.py:function`. Raises any exception of the import, or AttributeError."""
    file, _, name = function.rpartition(":")
    path = Path(file)
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    # Compile it anew: cached bytecode of a file that was edited within a second looks up to date.
    exec(compile(path.read_bytes(), path, "exec", dont_inherit=True), module.__dict__)
    FUNCTIONS.append(getattr(module, name))
    files = (getattr(module, "__file__", None) for module in tuple(sys.modules.values()))
    SOURCES.extend(sorted({file for file in files if file and _is_beside(Path(file), path.parent)}))


def _is_beside(file: Path, folder: Path) -> bool:
    installed = {"site-packages", "dist-packages"} & set(file.parts)
    return file.suffix == ".py" and file.is_relative_to(folder) and not installed


def run(task: dict[str, Any], url: str, key: str) -> object:
    return FUNCTIONS[0](task, url, key)
