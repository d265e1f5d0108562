"""The places of tests and modules in a source release, the causes of failed imports, and the
instruction of a task made of two releases. Pure.

Tests are in `tests`, `test` or `testing` at the top, in such a folder inside the package, or in
single files `test_*.py` at the top.
"""

import re
from collections.abc import Iterator, Sequence
from email.parser import HeaderParser
from pathlib import Path

from packaging.utils import canonicalize_name

STATEMENT = """\
This directory holds the source of {name} {release}. {count} that a later release brought along \
{fail} with it. Change the code so that {they} pass{es}, and so that everything that passes now \
goes on passing.

{tests}

Where a name ends in brackets, they hold the values that the test is run with. What \
lies at {folder} is of this release, so the newer tests are not in it; they are put in its place \
when your work is judged, and what you change there counts for nothing. There is no network.
"""


def statement(name: str, release: str, places: Sequence[str], tests: Sequence[str]) -> str:
    """Return the text of `instruction.md`; it does not depend on the fix."""
    one = len(tests) == 1
    return STATEMENT.format(
        name=name,
        release=release,
        folder=" and ".join(places),
        count="One test" if one else f"{len(tests)} tests",
        fail="fails" if one else "fail",
        they="it" if one else "they",
        es="es" if one else "",
        tests="\n".join(f"- {test}\n  ({in_words(test)})" for test in tests),
    )


def in_words(test: str) -> str:
    """Write `tests/test_a.py::TestB::test_c_of_d[1]` as `a, b: c of d`."""
    path, *names = re.sub(r"\[.*", "", test, flags=re.DOTALL).split("::")
    places = [path.rpartition("/")[2].removesuffix(".py"), *names[:-1]]
    return ", ".join(map(_words, places)) + "".join(f": {_words(name)}" for name in names[-1:])


def _words(name: str) -> str:
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).replace("_", " ")
    words = [word for word in spaced.lower().split() if word not in ("test", "tests")]
    return " ".join(words) or name


FOLDERS = ("tests", "test", "testing")
COLLECTED = ("test_*.py", "*_test.py")
"""Patterns of files that pytest collects by default."""
FILES = (*COLLECTED, "tests.py", "test.py")
DOCUMENTATION = ("docs", "doc")
"""Folders left out of a gold patch: inventories and pictures are most of a release's changes."""
BESIDE = frozenset((*FOLDERS, *DOCUMENTATION, "examples", "benchmarks", "build", "dist"))
CONFTEST = "conftest.py"
LACKS = re.compile(r"No module named '([\w.]+)'")
NO_METADATA = re.compile(r"No package metadata was found for ([\w.-]+)")


def places_of_tests(release: Path) -> list[str]:
    """Return folders and files of tests, below the release; empty if there are none."""
    for name in FOLDERS:
        if _has_tests(release / name):
            return _collected(release, Path(name))
    inside = [
        path.relative_to(release)
        for path in sorted(release.rglob("*"))
        if path.is_dir() and path.name in FOLDERS
    ]
    inside = [path for path in inside if not BESIDE & {*path.parts[:-1]}]
    found = [path for path in inside if _has_tests(release / path)]
    found = [path for path in found if not any(other in path.parents for other in found)]
    files = sorted({path.name for pattern in FILES for path in release.glob(pattern)})
    return [place for path in found for place in _collected(release, path)] or files


def _collected(release: Path, folder: Path) -> list[str]:
    """Return the folder, or its files if pytest would not collect them by name."""
    inside = [(release / folder).rglob(pattern) for pattern in COLLECTED]
    if any(path.is_file() for found in inside for path in found):
        return [str(folder)]
    named = [path for pattern in FILES for path in (release / folder).rglob(pattern)]
    return sorted(str(path.relative_to(release)) for path in named) or [str(folder)]


def configuring(release: Path, places: list[str]) -> list[str]:
    """Return each `conftest.py` above the tests."""
    above = {folder for place in places for folder in Path(place).parents}
    return sorted(
        str(folder / CONFTEST) for folder in above if (release / folder / CONFTEST).is_file()
    )


def modules(release: Path) -> list[str]:
    """Return the names that can be imported from a release, packages and single modules."""
    root = release / "src" if (release / "src").is_dir() else release
    packages = [path.parent.name for path in root.glob("*/__init__.py")]
    single = [path.stem for path in root.glob("*.py") if path.stem not in ("setup", "conftest")]
    tests = {Path(place).stem for place in places_of_tests(release)}
    found = [name for name in packages or single if name not in BESIDE | tests]
    return sorted(name for name in found if name.isidentifier())


def lacking(said: str, release: Path, name: str) -> str:
    """Return what a failed import lacks and its origin; empty if nothing is missing."""
    if missing := NO_METADATA.search(said):
        return f"the metadata of {missing[1]}, which only an installed wheel of it has"
    missing = LACKS.search(said)
    if missing is None:
        return ""
    module = missing[1]
    if module.partition(".")[0] in modules(release):
        return f"module {module!r}, which the build of {name} makes: it is only in its wheel"
    package = module.partition(".")[0]
    return f"module {module!r}, {_origin(release, package)}; name an image that has it by --image"


def _origin(release: Path, package: str) -> str:
    for requirement in _requirements(release):
        wanted = re.match(r"[\w.-]+", requirement)
        if wanted and _same(wanted[0], package):
            extra = re.search(r"extra\s*==\s*['\"]([\w.-]+)", requirement)
            return f"of its extra {extra[1]!r}" if extra else f"of its requirement {wanted[0]!r}"
    return "which is none of its requirements"


def _requirements(release: Path) -> Iterator[str]:
    try:
        text = (release / "PKG-INFO").read_text("utf-8", "replace")
    except OSError:
        return
    yield from HeaderParser().parsestr(text).get_all("Requires-Dist", [])


def _same(name: str, module: str) -> bool:
    plain = canonicalize_name(name)
    return canonicalize_name(module) in (plain, plain.removeprefix("python-"))


def _has_tests(folder: Path) -> bool:
    return folder.is_dir() and any(path.is_file() for path in folder.rglob("*test*.py"))
