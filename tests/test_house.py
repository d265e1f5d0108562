"""The structure of product and tests: no circles of files, shared helpers in `support`."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from rollcall.schemas.errors import FailureCode
from rollcall.schemas.rules import Need

TESTS = Path(__file__).parent
MODULES = sorted(TESTS.rglob("*.py"))
FOLDERS = ("schemas", "producers", "consumers", "inference", "sandbox", "trainer", "compose")
PRODUCT = [path for folder in FOLDERS for path in sorted((TESTS.parent / folder).rglob("*.py"))]


def imports_of(path: Path) -> set[str]:
    """Every module that a file names in an import, at its top or in a function."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: write imports of tests in full"
            module = node.module or ""
            names |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return names


def name_of(path: Path) -> str:
    """The name by which a module of the tests would be imported."""
    return path.relative_to(TESTS.parent).with_suffix("").as_posix().replace("/", ".")


def test_no_module_imports_a_test_module() -> None:
    """This includes conftest modules: shared helpers are in `tests/support`."""
    alone = {name_of(p) for p in MODULES if p.stem.startswith("test_") or p.stem == "conftest"}

    imported = {name_of(path): sorted(imports_of(path) & alone) for path in MODULES}

    assert {name: found for name, found in imported.items() if found} == {}


def test_support_holds_no_tests() -> None:
    assert [path.name for path in (TESTS / "support").rglob("test_*.py")] == []


def test_no_files_of_the_product_import_one_another() -> None:
    """Imports in functions and for annotations count: they too have to be read together."""
    modules = {f"rollcall.{name_of(path)}".removesuffix(".__init__"): path for path in PRODUCT}
    imports = {name: imports_of(path) & modules.keys() for name, path in modules.items()}

    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(f"these files import one another: {' -> '.join(error.args[1])}")


FAILED = (
    "CallFailed",
    "ProgramFailed",
    "RolloutRefused",
    "WishFailed",
    "WorkFailed",
    "convert_errors",
)
"""Calls whose first argument is a failure code."""
CODES, NEEDS = {code.value for code in FailureCode}, {need.value for need in Need}


def enum_places(node: ast.AST) -> Iterator[tuple[ast.expr, set[str]]]:
    """The expressions that stand for a code or need, each with the texts that a member equals."""
    if isinstance(node, ast.Call):
        yield from ((each.value, CODES) for each in node.keywords if each.arg == "code")
        yield from ((each, CODES) for each in node.args[:1] if name_in(node.func) in FAILED)
        yield from ((each, NEEDS) for each in node.args if name_in(node.func) in ("needs", "gives"))
    elif isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        for side in sides if "code" in map(name_in, sides) else ():
            yield from ((each, CODES) for each in (side, *getattr(side, "elts", ())))
        if "needs" in map(name_in, node.comparators):
            yield node.left, NEEDS


def name_in(node: ast.AST) -> str:
    """The last name of `a`, `x.a` or a call's function."""
    return str(getattr(node, "attr", getattr(node, "id", "")))


def test_no_bare_text_stands_where_a_member_of_an_enum_exists() -> None:
    bare = [
        f"{path.relative_to(TESTS.parent)}:{place.lineno} {place.value!r}"
        for path in PRODUCT
        for node in ast.walk(ast.parse(path.read_text()))
        for place, texts in enum_places(node)
        if isinstance(place, ast.Constant) and place.value in texts
    ]

    assert bare == []
