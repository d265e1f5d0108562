"""The structure of product and tests: no circles of files, shared helpers in `support`."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

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
