"""Whether a test may be skipped, or may fail as expected: only where its own file says so. Pure.

An outcome that the code under test asks for, by `pytest.skip` or `pytest.xfail` or by raising what
they raise, tells nothing of that code. So SKIPPED and XFAIL count where the reference's test, what
its file does beside its other tests, or a `conftest.py` above it speaks of them, and where no code
of the tree but those has raised them.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath

from sandbox.grading.verdict import SKIPPED, XFAIL

WORDS = {SKIPPED: ("skip", "Skip"), XFAIL: ("xfail", "expectedFailure")}
"""One of these stands where a test is marked so, or raises it."""
CONFTEST = "conftest.py"


class Marks:
    """The texts of the reference's tests and of the tree's `conftest.py` files, by path."""

    def __init__(self, texts: Mapping[str, bytes], is_test_file: Callable[[str], bool]) -> None:
        self._texts = texts
        self._is_test_file = is_test_file
        """Whether a path is one of the reference, and none that a patch can change."""

    def allow(self, test: str, outcome: str, where: str) -> bool:
        """Whether an outcome of a test counts.

        `where` is the file that raised it: empty for a mark, absolute outside of the tree.
        """
        if outcome not in WORDS:
            return True
        ours = not where or where.startswith("/") or self._is_test_file(where)
        words = WORDS[outcome]
        return ours and any(word in text for text in self._spoken(test) for word in words)

    def _spoken(self, test: str) -> Iterator[str]:
        """What is said about a test."""
        path, _, name = test.partition("::")
        for each, text in self._texts.items():
            above = PurePosixPath(each).parent in PurePosixPath(path).parents
            if PurePosixPath(each).name == CONFTEST and above:
                yield text.decode("utf-8", "replace")
        if path in self._texts:
            yield about(self._texts[path].decode("utf-8", "replace"), name)
        elif not name:  # no path of a file: another runner's name
            yield from (text.decode("utf-8", "replace") for text in self._texts.values())


def about(source: str, test: str) -> str:
    """What a file says about one of its tests: all of it but its other tests."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source
    lines, wanted = source.splitlines(), tuple(test.partition("[")[0].split("::"))
    tests = list(_tests(tree, ()))
    if wanted not in [place for place, _ in tests]:
        return source  # it is made while the file runs, or inherited
    for place, node in tests:
        if place != wanted:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            last = node.end_lineno or first
            lines[first - 1 : last] = [""] * (last - first + 1)
    return "\n".join(lines)


def _tests(
    tree: ast.AST, above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The test functions of a module, by their classes and their name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _tests(node, (*above, node.name))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.name.startswith("test"):
                yield (*above, node.name), node
        else:
            yield from _tests(node, above)
