"""Outcomes of a test run: parsed from its output, and the skips and expected failures that count.

A patch controls what its tests print, so its output must not be able to block the worker: it is
parsed in a process of its own with bounds of CPU, memory and time. Output that cannot be parsed
within the bounds is not a verdict here: the caller finds out whether the output can be parsed
without the patch.

An outcome that the code under test requests, by `pytest.skip`, `pytest.xfail` or their exceptions,
proves nothing about that code. So SKIPPED and XFAIL count only if the reference's test, its file
outside of other tests, or a `conftest.py` above it mentions them, and if no other code of the tree
raised them.
"""

import ast
import asyncio
import json
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath

from rollcall.sandbox.grading.parsers import parse
from rollcall.sandbox.grading.verdict import SKIPPED, XFAIL, TestLog
from rollcall.schemas.errors import WorkFailed

WORDS = {SKIPPED: ("skip", "Skip"), XFAIL: ("xfail", "expectedFailure")}
"""Words of which one occurs in a text that marks a test so, or raises the outcome."""
CONFTEST = "conftest.py"


class Marks:
    """The texts of the reference's tests and of the tree's `conftest.py` files, by path."""

    def __init__(self, texts: Mapping[str, bytes], is_test_file: Callable[[str], bool]) -> None:
        self._texts = texts
        self._is_test_file = is_test_file
        """A function that is true for the reference's paths, which a patch cannot change."""

    def allow(self, test: str, outcome: str, where: str) -> bool:
        """Return True if an outcome of a test counts.

        `where` is the file that raised it: empty for a mark, absolute if outside of the tree.
        """
        if outcome not in WORDS:
            return True
        ours = not where or where.startswith("/") or self._is_test_file(where)
        words = WORDS[outcome]
        return ours and any(word in text for text in self._spoken(test) for word in words)

    def _spoken(self, test: str) -> Iterator[str]:
        """Yield the texts that may mark a test."""
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
    """Return a file's text without its tests other than this one."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source
    lines, wanted = source.splitlines(), tuple(test.partition("[")[0].split("::"))
    tests = list(_tests(tree, ()))
    if wanted not in [place for place, _ in tests]:
        return source  # the test is made at run time, or inherited
    for place, node in tests:
        if place != wanted:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            last = node.end_lineno or first
            lines[first - 1 : last] = [""] * (last - first + 1)
    return "\n".join(lines)


def _tests(
    tree: ast.AST, above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield the test functions of a module, with their classes and name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _tests(node, (*above, node.name))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.name.startswith("test"):
                yield (*above, node.name), node
        else:
            yield from _tests(node, above)


CPU_S = 20
WALL_S = 120.0
MEMORY_BYTES = 4 << 30
SAID = 300


class NotRead(Exception):
    """Raised if a run's output cannot be parsed."""


async def parsed(parser: str, text: str) -> TestLog:
    """Parse a text, as `parse` does, in another process. Raises NotRead."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        __name__,
        parser,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(WALL_S):
            said, complaint = await process.communicate(text.encode("utf-8", "surrogatepass"))
    except TimeoutError:
        msg = f"parser {parser!r} did not read {len(text):,} characters within {WALL_S:g} s"
        raise NotRead(msg) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        last = complaint.decode("utf-8", "replace").strip().rpartition("\n")[2][:SAID]
        msg = f"parser {parser!r} cannot read it: {last or f'it ended with {process.returncode}'}"
        raise NotRead(msg)
    return TestLog(**json.loads(said))


def main(parser: str) -> None:
    """Parse standard input, and write the log as JSON."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    text = sys.stdin.buffer.read().decode("utf-8", "surrogatepass")
    try:
        log = parse(parser, text)
    except WorkFailed as error:
        sys.exit(str(error))
    counts = None if log.counts is None else dict(log.counts)
    said = {"outcomes": dict(log.outcomes), "counts": counts, "wrong": log.wrong}
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
