"""The structure of the tests: each module is independent, shared helpers are in `support`."""

import ast
from pathlib import Path

TESTS = Path(__file__).parent
MODULES = sorted(TESTS.rglob("*.py"))


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
