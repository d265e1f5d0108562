"""Imports of our packages by the names that they had before they became `rollcall.*`.

Agent programs of recorded runs may import `consumers.agents.wishes` or `schemas.messages`. A replay
loads such a program again, so these names lead to the same modules as today's. A module of the
user's with such a name comes first.
"""

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

PACKAGE = "rollcall"
FORMER = ("schemas", "producers", "consumers", "inference", "sandbox", "trainer", "compose")
"""Packages that could be imported without `rollcall.` before it."""
MOVED: Mapping[str, str] = {
    "consumers.agents.wishes": "consumers.agents.effects",
    "trainer.rewards": "trainer.rules.rewards",
    "trainer.samples": "trainer.rules.samples",
    "trainer.tokens": "trainer.rules.tokens",
}
"""Modules that have moved since, by their former name; today's name without `rollcall.`."""


class _SameModule(Loader):
    """Gives the module of another name, unchanged."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.name)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Undo what the import system has set: the module has run already."""
        module.__spec__ = self.spec


class FormerNames(MetaPathFinder):
    """Finds our modules by their former names, unless the name is another module's."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of an alias, or None where the usual search applies."""
        package = fullname.partition(".")[0]
        if package not in FORMER or not _is_ours(package):
            return None
        name = f"{PACKAGE}.{MOVED.get(fullname, fullname)}"
        if find_spec(name) is None:
            return None
        return ModuleSpec(fullname, _SameModule(name), is_package=True)


def _is_ours(package: str) -> bool:
    loaded = sys.modules.get(package)
    if loaded is not None:
        return loaded is sys.modules.get(f"{PACKAGE}.{package}")
    spec = PathFinder.find_spec(package)
    places = () if spec is None else spec.submodule_search_locations or (spec.origin or "",)
    ours = Path(__file__).resolve().parents[1] / package  # a checkout may be on the path itself
    return all(Path(place).resolve() == ours for place in places)


def accept_former_names() -> None:
    """Let imports find our modules by their former names from now on. May be called often."""
    if not any(isinstance(finder, FormerNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, FormerNames())
