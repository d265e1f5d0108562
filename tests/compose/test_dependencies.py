"""Libraries that the product imports are declared, each with one range of versions."""

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import packages_distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.command_line import ROOT
from tests.support.rooms import ROOMS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ELSEWHERE = {"minisweagent", "agents", "smolagents", "openai", "yaml", "vllm"}
ELSEWHERE |= {"pytest", "_pytest", "hatchling"}
"""Found in environments of their own: agents', vLLM's, a task's tests, the build's."""
BY_PATH = {"supervisor_process", "namespaces", "process_tree", "program_groups"}
PART_OF = {"pydantic-core": "pydantic"}


def declared() -> Iterator[Requirement]:
    for text in PROJECT["dependencies"]:
        yield Requirement(text)
    for extra in PROJECT["optional-dependencies"].values():
        yield from map(Requirement, extra)


def imported() -> dict[str, str]:
    """Each library that a module of the product imports, with one such module."""
    found = {}
    for path in (each for room in ROOMS for each in (ROOT / room).rglob("*.py")):
        if "recipes" in path.parts:  # tasks
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for name in names:
                found[name.partition(".")[0]] = str(path.relative_to(ROOT))
    ours = {*sys.stdlib_module_names, *ROOMS, *ELSEWHERE, *BY_PATH}
    return {name: path for name, path in found.items() if name not in ours}


def test_each_imported_library_is_declared() -> None:
    known = {canonicalize_name(requirement.name) for requirement in declared()}
    homes = packages_distributions()

    missing = {}
    for name, path in imported().items():
        names = {canonicalize_name(home) for home in homes.get(name, [name])}
        if not known & {PART_OF.get(home, home) for home in names}:
            missing[name] = path

    assert missing == {}


def test_library_declared_twice_has_one_range() -> None:
    ranges = defaultdict(set)
    for requirement in declared():
        ranges[canonicalize_name(requirement.name)].add(str(requirement.specifier))

    assert {name: found for name, found in ranges.items() if len(found) > 1} == {}


def test_each_room_is_linked_into_the_package() -> None:
    links = {path.name: path.resolve() for path in (ROOT / "rollcall").iterdir() if path.is_dir()}
    links.pop("__pycache__", None)

    assert links == {room: ROOT / room for room in ROOMS if room != "rollcall"}


def test_the_changelog_begins_with_the_version_of_the_package() -> None:
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert versions[0] == PROJECT["version"]


def test_the_readme_names_each_dependency_and_each_extra() -> None:
    page = (ROOT / "README.md").read_text()
    named = page.partition("Dependencies:")[2].partition("\n\n")[0]
    plain = {Requirement(text).name for text in PROJECT["dependencies"]}

    assert {name for name in plain if name not in named} == set()
    assert {name for name in PROJECT["optional-dependencies"] if f"`{name}`" not in named} == set()
