"""Right work earns 1, in any style of tests: each of these cases has a gold patch that resolves.

The reference's tests use common features: marks, fixtures, decorators with and without
`functools.wraps`, patched modules, threads, subprocesses, classes of unittest, generated tests.
"""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from rollcall.sandbox.boxes.box import driver
from rollcall.sandbox.grading.grading import grade
from rollcall.sandbox.grading.verdict import Verdict
from tests.support.tiers import cases, selected
from tests.support.tiny_package import BASE, FIXED, Patches, reference, tar_of

HEAD = "import os, subprocess, sys, threading, types, unittest\nimport pytest\nimport tiny.sums\n"
HEAD += "from tiny.sums import add, same\n\n\n"
ADDS = "    assert add(2, 3) == 5\n"
CASES: Mapping[str, str] = {
    "a plain function": f"def test_it():\n{ADDS}",
    "a parameter": "@pytest.mark.parametrize('n', [3, 'a[b]::c - d', 4.5])\ndef test_it(n):\n"
    "    assert add(n, n) == n + n\n",
    "an expected failure": f"def test_it():\n{ADDS}\n\n"
    "@pytest.mark.xfail(strict=True)\ndef test_kept():\n    assert same(1) == 2\n",
    "an expected failure in the code under test": f"def test_it():\n{ADDS}\n\n"
    "@pytest.mark.xfail(raises=TypeError)\ndef test_kept():\n    add(1, 'a')\n",
    "an expected failure that the test asks for": f"def test_it():\n{ADDS}\n\n"
    "def test_kept():\n    if same(1):\n        pytest.xfail('not yet')\n",
    "a skip by a mark": f"def test_it():\n{ADDS}\n\n"
    "@pytest.mark.skipif(sys.version_info > (3,), reason='old')\ndef test_kept():\n    pass\n",
    "a skip by a mark of the file's own": "old = pytest.mark.skipif(True, reason='old')\n\n\n"
    f"def test_it():\n{ADDS}\n\n@old\ndef test_kept():\n    pass\n",
    "a skip that a helper of the file asks for": "def need(it):\n    if not it:\n"
    f"        pytest.skip('needs it')\n\n\ndef test_it():\n{ADDS}\n\n"
    "def test_kept():\n    need(same(0))\n",
    "a skip for want of a package": f"def test_it():\n{ADDS}\n\n"
    "def test_kept():\n    pytest.importorskip('no_such_package')\n",
    "a class": "class TestAll:\n    def test_it(self):\n        assert add(2, 3) == 5\n",
    "a class of unittest": "class TestAll(unittest.TestCase):\n    def test_it(self):\n"
    "        self.assertEqual(add(2, 3), 5)\n\n    @unittest.skip('later')\n"
    "    def test_kept(self):\n        pass\n",
    "subtests of unittest": "class TestAll(unittest.TestCase):\n    def test_it(self):\n"
    "        for n in (1, 2):\n            with self.subTest(n=n):\n"
    "                self.assertEqual(add(n, n), 2 * n)\n",
    "an expected failure of unittest": "class TestAll(unittest.TestCase):\n"
    "    def test_it(self):\n        self.assertEqual(add(2, 3), 5)\n\n"
    "    @unittest.expectedFailure\n    def test_kept(self):\n"
    "        self.assertEqual(same(1), 2)\n",
    "an inherited test": "class Base:\n    def test_it(self):\n        assert add(2, 3) == 5\n\n\n"
    "class TestAll(Base):\n    pass\n",
    "a decorator that wraps": "import functools\n\n\ndef twice(f):\n    @functools.wraps(f)\n"
    "    def inner(*a, **k):\n        f(*a, **k)\n        f(*a, **k)\n    return inner\n\n\n"
    f"@twice\ndef test_it():\n{ADDS}",
    "a decorator that does not wrap": "def twice(f):\n"
    "    def test_it():\n        f()\n        f()\n"
    f"    return test_it\n\n\n@twice\ndef test_it():\n{ADDS}",
    "a patched function": "from unittest import mock\n\n\n@mock.patch('tiny.sums.same')\n"
    f"def test_it(same):\n{ADDS}",
    "a monkeypatched builtin": "def test_it(monkeypatch):\n"
    f"    monkeypatch.setattr('builtins.open', lambda *a: None)\n{ADDS}",
    "a fixture that patches for all": "@pytest.fixture(autouse=True)\ndef patched(monkeypatch):\n"
    "    monkeypatch.setattr(tiny.sums, 'same', lambda a: a)\n"
    f"    monkeypatch.setattr(os, 'getcwd', lambda: '/')\n\n\ndef test_it():\n{ADDS}",
    "a global that tests count in": "count = 0\n\n\ndef test_it():\n    global count\n"
    "    count += 1\n    assert add(count, 1) == 2\n",
    "an imported name that a test exchanges": "def test_it(monkeypatch):\n"
    "    monkeypatch.setitem(globals(), 'same', lambda a: a)\n    assert add(2, 3) == same(5)\n",
    "pytest.raises": "def test_it():\n    with pytest.raises(TypeError):\n"
    f"        add(1, 'a')\n{ADDS}",
    "warnings and logs": "import logging\nimport warnings\n\n\ndef test_it(caplog, recwarn):\n"
    "    with pytest.warns(UserWarning):\n        warnings.warn('x')\n"
    "    logging.getLogger().warning('y')\n    assert caplog.text\n    assert add(2, 3) == 5\n",
    "approximation": "def test_it():\n    assert add(0.1, 0.2) == pytest.approx(0.3)\n",
    "a thread": "def test_it():\n    found = []\n"
    "    thread = threading.Thread(target=lambda: found.append(add(2, 3)))\n    thread.start()\n"
    "    thread.join()\n    assert found == [5]\n",
    "a subprocess that imports the package": "def test_it():\n"
    "    text = 'from tiny.sums import add; print(add(2, 3))'\n"
    "    said = subprocess.run([sys.executable, '-c', text], capture_output=True, text=True)\n"
    "    assert said.stdout == '5\\n', said.stderr\n",
    "a subprocess that runs pytest": "def test_it(tmp_path):\n"
    "    (tmp_path / 'test_x.py').write_text('def test_x(): pass')\n"
    "    run = [sys.executable, '-m', 'pytest', '-q', str(tmp_path)]\n"
    "    assert subprocess.run(run, capture_output=True, cwd=tmp_path).returncode == 0\n"
    f"{ADDS}",
    "a fork": "def test_it():\n    pid = os.fork()\n    if pid == 0:\n"
    "        os._exit(add(2, 3))\n"
    "    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5\n",
    "output on both descriptors": "def test_it(capfd):\n    os.write(1, b'PASSED x::y')\n"
    "    os.write(2, b'1 failed')\n    assert capfd.readouterr().out\n    assert add(2, 3) == 5\n",
    "a trace function of its own": "def test_it():\n    seen = []\n    before = sys.gettrace()\n"
    "    sys.settrace(lambda *a: seen.append(a))\n    try:\n        found = add(2, 3)\n"
    "    finally:\n        sys.settrace(before)\n    assert seen\n    assert found == 5\n",
    "a changed directory": "def test_it(tmp_path, monkeypatch):\n    monkeypatch.chdir(tmp_path)\n"
    f"{ADDS}",
    "tests that a loop makes": "def made(n):\n    def test():\n        assert add(n, n) == 2 * n\n"
    "    return test\n\n\nfor n in (1, 2):\n    globals()[f'test_it_{n}'] = made(n)\n",
    "a hook for parameters": "def pytest_generate_tests(metafunc):\n"
    "    if 'n' in metafunc.fixturenames:\n        metafunc.parametrize('n', [1, 2])\n\n\n"
    "def test_it(n):\n    assert add(n, n) == 2 * n\n",
    "a fixture with a teardown": "@pytest.fixture\ndef made():\n    yield 2\n"
    "    assert same(1) == 1\n"
    "\n\ndef test_it(made):\n    assert add(made, 3) == 5\n",
    "a partial": "import functools\n\n\ndef check(a, b):\n    assert add(a, b) == a + b\n\n\n"
    "class TestAll:\n    test_it = functools.partialmethod(lambda self, a, b: check(a, b), 2, 3)\n"
    "\n    def test_too(self):\n        check(2, 3)\n",
    "the same name in two classes": "class TestOne:\n    def test_it(self):\n"
    "        assert add(2, 3) == 5\n\n\nclass TestTwo:\n    def test_it(self):\n"
    "        assert add(2, 4) == 6\n",
    "a name bound by an import and by hand": "try:\n    from tiny.sums import fast\n"
    f"except ImportError:\n    fast = None\n\n\ndef test_it():\n    assert fast is None\n{ADDS}",
    "a reload of the package": "import importlib\n\n\ndef test_it():\n"
    "    assert importlib.reload(tiny.sums).add(2, 3) == 5\n",
    "a docstring, unicode and long lines": 'def test_it():\n    """Añade: 加える."""\n'
    f"    assert add('ä' * 50, 'ü') == 'ä' * 50 + 'ü'\n{ADDS}",
    "a future import": f"from __future__ import annotations\n{HEAD}def test_it() -> None:\n{ADDS}",
    "no rewriting": f'"""PYTEST_DONT_REWRITE"""\n{HEAD}def test_it():\n{ADDS}',
}  # fmt: skip
"""Tests of a file, by the feature that they use; each ends in names that are defined below."""
PATCHES: Mapping[str, Mapping[str, str]] = {
    "a new module": {
        "tiny/sums.py": "from tiny.plus import plus\n\n\ndef add(a, b):\n    return plus(a, b)\n"
        "\n\ndef same(a):\n    return a\n",
        "tiny/plus.py": "def plus(a, b):\n    return a + b\n",
    },
    "modules with names of the standard library": {
        "tiny/sums.py": FIXED, "tiny/json.py": "", "tiny/unittest.py": "", "tiny/pytest.py": "",
    },
    "its own tests beside": {
        "tiny/sums.py": FIXED, "tests/test_mine.py": "def test_mine():\n    assert False\n",
        "tests/test_sums.py": "def test_other():\n    pass\n",
    },
    "a conftest.py and ini files beside": {
        "tiny/sums.py": FIXED, "conftest.py": "import pytest\n", "tests/conftest.py": "",
        "setup.cfg": BASE["setup.cfg"] + "\n[metadata]\nname = tiny\n",
    },
    "a thread at import": {
        "tiny/sums.py": "import threading\nthreading.Thread(target=lambda: None).start()\n" + FIXED,
    },
    "an exit handler": {"tiny/sums.py": f"import atexit\natexit.register(print, 'bye')\n{FIXED}"},
    "printing": {"tiny/sums.py": "print('FAILED tests/test_sums.py::test_adds')\n" + FIXED},
    "a module with a lazy attribute": {
        "tiny/sums.py": FIXED + "\n\ndef __getattr__(name):\n    raise AttributeError(name)\n",
    },
    "classes": {
        "tiny/sums.py": "class Adder:\n    def __call__(self, a, b):\n        return a + b\n\n\n"
        "add = Adder()\n\n\ndef same(a):\n    return a\n",
    },
    "a builtin that it installs": {
        "tiny/sums.py": "import builtins\nbuiltins._ = str\n" + FIXED,
    },
    "a generated function": {
        "tiny/sums.py": "exec('def add(a, b): return a + b')\n\n\ndef same(a):\n    return a\n",
    },
    "a warning": {"tiny/sums.py": "import warnings\nwarnings.warn('old')\n" + FIXED},
    "a handled signal": {
        "tiny/sums.py": "import signal\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)\n" + FIXED,
    },
    "an import hook": {
        "tiny/sums.py": "import sys\n\n\nclass Finder:\n    @staticmethod\n"
        "    def find_spec(*a):\n        return None\n\n\n"
        f"sys.meta_path.insert(0, Finder)\n{FIXED}",
    },
    "a deep recursion limit": {"tiny/sums.py": "import sys\nsys.setrecursionlimit(9999)\n" + FIXED},
    "a subclass of a test case in the package": {
        "tiny/sums.py": FIXED, "tiny/testing.py": "import unittest\n\n\n"
        "class Case(unittest.TestCase):\n    def assertEqual(self, a, b):\n        assert a == b\n",
    },
    "an optional use of pytest": {
        "tiny/sums.py": "try:\n    import pytest\nexcept ImportError:\n    pytest = None\n" + FIXED,
    },
    "a patched module that is no runner": {
        "tiny/sums.py": "import textwrap\ntextwrap.dedent = textwrap.dedent\n"
        "textwrap.more = print\n" + FIXED,
    },
    "removal of an unused file": {"tiny/sums.py": FIXED, "data.bin": "other"},
}  # fmt: skip
"""Files of right patches, by what they do in addition to the fix."""
QUICK = {
    "a plain function", "a parameter", "an expected failure", "a class of unittest",
    "a decorator that wraps", "a new module", "its own tests beside",
}  # fmt: skip
"""The features that most tests use, and two patches: `make test-all` grades all."""
COMMAND = f"PYTHONPATH=. {sys.executable} -m pytest -q tests"


def listed(text: str) -> tuple[str, ...]:
    """The tests of a file as pytest names them."""
    with tempfile.TemporaryDirectory(prefix="tests-") as directory:
        for name, content in {**BASE, "tiny/sums.py": FIXED, "tests/test_sums.py": text}.items():
            place = Path(directory) / name
            place.parent.mkdir(exist_ok=True)
            place.write_text(content)
        run = [sys.executable, "-m", "pytest", "-q", "--co", "-p", "no:cacheprovider", "tests"]
        environment = {"PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                       "PYTHONPATH": directory}  # fmt: skip
        said = subprocess.run(
            run, cwd=directory, capture_output=True, text=True, check=True, env=environment
        ).stdout
    return tuple(line for line in said.splitlines() if line.startswith("tests/"))


async def judged(text: str, patch: bytes, mend: tuple[str, ...], keep: tuple[str, ...]) -> Verdict:
    asked = reference(command=COMMAND, fail_to_pass=mend, pass_to_pass=keep)
    asked = replace(asked, tests=tar_of({"tests/test_sums.py": text}))
    return await grade(driver("local").open, asked, patch)


def all_judged(work: Mapping[str, tuple[str, bytes]]) -> dict[str, Verdict]:
    """Verdicts by name on patches, each with the tests of a file, two at once."""

    async def whole() -> dict[str, Verdict]:
        two = asyncio.Semaphore(2)

        async def one(text: str, patch: bytes) -> Verdict:
            async with two:
                names = await asyncio.to_thread(listed, text)
                keep = tuple(name for name in names if "kept" in name)
                mend = tuple(name for name in names if name not in keep)
                return await judged(text, patch, mend, keep)

        verdicts = await asyncio.gather(*(one(*each) for each in work.values()))
        return dict(zip(work, verdicts, strict=True))

    return asyncio.run(whole())


@pytest.fixture(scope="module")
def patches(tmp_path_factory: pytest.TempPathFactory) -> Patches:
    return Patches(tmp_path_factory.mktemp("patches") / "work")


@pytest.fixture(scope="module")
def verdicts(request: pytest.FixtureRequest, patches: Patches) -> dict[str, Verdict]:
    names = selected(request, "name")
    plain = HEAD + CASES["a plain function"]
    gold = patches.gold()
    work = {
        name: (text if "from __future__" in text or "DONT_REWRITE" in text else HEAD + text, gold)
        for name, text in CASES.items()
    }
    work |= {name: (plain, patches.of(files)) for name, files in PATCHES.items()}
    work |= {f"not: {name}": (work[name][0], patches.of({"new.txt": "x\n"})) for name in CASES}
    return all_judged(
        {name: each for name, each in work.items() if name.removeprefix("not: ") in names}
    )


@pytest.mark.parametrize("name", cases([*CASES, *PATCHES], QUICK))
def test_right_patch_resolves_every_case(verdicts: dict[str, Verdict], name: str) -> None:
    assert verdicts[name].resolved, str(verdicts[name])


@pytest.mark.parametrize("name", cases(CASES, QUICK))
def test_patch_without_a_fix_fails_the_same_tests(verdicts: dict[str, Verdict], name: str) -> None:
    assert verdicts[f"not: {name}"].code == "failed", str(verdicts[f"not: {name}"])


def test_there_are_at_least_sixty_cases() -> None:
    assert len(CASES) + len(PATCHES) >= 60
