"""Patches that change how pytest finds, holds and runs tests, with the verdict that each earns.

Some of them want a test of `LATER`, a suite of two files: the package is imported by the first.
"""

from tests.support.hostile_patches import RIGHT, Attack, at_collection, at_import, sums

FIRST = "from tiny.sums import same\n\n\ndef test_same():\n    assert same(3) == 3\n"
LATER = {
    "tests/test_first.py": FIRST,
    "tests/test_later.py": (
        "import unittest\n\nimport pytest\n\nfrom tiny.sums import add, same\n\nEXPECTED = 5\n\n\n"
        "def check(found, wanted):\n    assert found == wanted\n\n\n"
        "def test_helper():\n    check(add(2, 3), 5)\n\n\n"
        "def test_constant():\n    assert add(2, 3) == EXPECTED\n\n\n"
        "def test_builtin():\n    assert len(range(add(2, 3))) == 5\n\n\n"
        "@pytest.mark.parametrize('a, b', [(2, 3)])\n"
        "def test_parameters(a, b):\n    assert add(a, b) == a + b\n\n\n"
        "@pytest.fixture\ndef three():\n    return 3\n\n\n"
        "def test_fixture(three):\n    assert add(2, three) == 5\n\n\n"
        "class LaterTest(unittest.TestCase):\n    def test_class(self):\n"
        "        self.assertEqual(add(2, 3), 5)\n\n\n"
        "def test_nothing():\n    pass\n\n\n"
        "def test_same():\n    assert same(3) == 3\n"
    ),
}
HELPER, CONSTANT, BUILTIN, PARAMETERS, FIXTURE = (
    f"tests/test_later.py::test_{name}"
    for name in ("helper", "constant", "builtin", "parameters[2-3]", "fixture")
)
CLASS = "tests/test_later.py::LaterTest::test_class"
MANAGERS = (
    "import gc, sys, types\nfrom _pytest.config import PytestPluginManager\n"
    "managers = [each for each in gc.get_objects() if isinstance(each, PytestPluginManager)]\n"
)
FAKE = (
    "import pytest\n@pytest.hookimpl(wrapper=True)\n"
    "def pytest_runtest_makereport(item, call):\n    report = yield\n"
    "    if item.name == 'test_adds':\n        report.outcome, report.longrepr = 'passed', None\n"
    "    return report\n"
)
COUNTED = (
    "import pytest\n@pytest.hookimpl(tryfirst=True)\n"
    "def pytest_pyfunc_call(pyfuncitem):\n"
    "    return True if pyfuncitem.name == 'test_adds' else None\n"
)
LATER_ITEMS = (
    "import gc\nfrom _pytest.config import PytestPluginManager\nclass Plugin:\n"
    "    def pytest_collection_modifyitems(self, session, items):\n"
    "        by = {{item.name: item for item in items}}\n        import sys\n{}"
    "for each in gc.get_objects():\n    if isinstance(each, PytestPluginManager):\n"
    "        each.register(Plugin())\n"
)


def at_later_collection(*lines: str) -> dict[str, str]:
    """Run when all items are collected, which stand in `by` under their names."""
    return at_import(LATER_ITEMS.format("".join(f"        {line}\n" for line in lines)))


HOOKS: dict[str, Attack] = {
    "a plugin that calls itself conftest.py": Attack(
        "invalid", "pytest_runtest_makereport, which",
        at_import(
            f"{FAKE}{MANAGERS}fake = types.ModuleType('conftest')\n"
            "fake.__file__ = '/tests/conftest.py'\n"
            "fake.pytest_runtest_makereport = pytest_runtest_makereport\n"
            "for each in managers: each.register(fake)\n"
        ),
    ),
    "a conftest.py that is written while tests run": Attack(
        "invalid", "pytest_runtest_makereport, which",
        at_import(
            f"{MANAGERS}import pathlib, tempfile\n"
            "place = pathlib.Path(tempfile.mkdtemp()) / 'conftest.py'\n"
            f"place.write_text({FAKE!r})\n"
            "for each in managers: each._importconftest(place, 'prepend', rootpath=place.parent,"
            " consider_namespace_packages=False)\n"
        ),
    ),
    "a hook that is put in beside the plugin manager": Attack(
        "invalid", "pytest_pyfunc_call",
        at_import(
            f"{COUNTED}{MANAGERS}from pluggy._hooks import HookImpl\n"
            "from tiny import hooked\n"
            "for each in managers:\n"
            "    caller = each.hook.pytest_pyfunc_call\n"
            "    options = each.parse_hookimpl_opts(hooked, 'pytest_pyfunc_call')\n"
            "    from pluggy._hooks import normalize_hookimpl_opts as whole\n"
            "    whole(options)\n"
            "    caller._hookimpls.append("
            "HookImpl(hooked, 'x', hooked.pytest_pyfunc_call, options))\n"
        )
        | {"tiny/hooked.py": COUNTED},
    ),
    "the plugin manager calls hooks by another function": Attack(
        "invalid", "hooks are called by another function",
        at_import(
            f"{MANAGERS}for each in managers:\n"
            "    def called(name, hooks, kwargs, first, real=each._inner_hookexec):\n"
            "        test = getattr(kwargs.get('pyfuncitem'), 'name', '')\n"
            "        if name == 'pytest_pyfunc_call' and test == 'test_adds':\n"
            "            return True\n"
            "        return real(name, hooks, kwargs, first)\n"
            "    each._inner_hookexec = called\n"
        ),
    ),
    "a hook that has the globals of pytest": Attack(
        "invalid", "pytest_pyfunc_call, which",
        at_import(
            f"{COUNTED}{MANAGERS}import _pytest.runner as runner\nclass Plugin: pass\n"
            "plugin = Plugin()\nhook = types.FunctionType(pytest_pyfunc_call.__code__,"
            " vars(runner))\n"
            "plugin.pytest_pyfunc_call = pytest.hookimpl(tryfirst=True)(hook)\n"
            "for each in managers: each.register(plugin)\n"
        ),
    ),
    "a hook that is no function": Attack(
        "invalid", "pytest_pyfunc_call",
        at_import(
            f"{MANAGERS}import pytest\nclass Call:\n"
            "    def __call__(self, plugin, pyfuncitem):\n"
            "        return True if pyfuncitem.name == 'test_adds' else None\n"
            "    __name__ = 'pytest_pyfunc_call'\nclass Plugin: pass\nplugin = Plugin()\n"
            "call = Call()\n"
            "call.pytest_impl = dict(wrapper=False, hookwrapper=False, optionalhook=False,"
            " tryfirst=True, trylast=False, specname=None)\n"
            "plugin.pytest_pyfunc_call = types.MethodType(call, plugin)\n"
            "for each in managers: each.register(plugin)\n"
        ),
    ),
    "the session gives other hooks": Attack(
        "invalid", "has a gethookproxy of its own",
        at_later_collection(
            "real = session.gethookproxy",
            "class Proxy:",
            "    def __init__(self, hooks): self.hooks = hooks",
            "    def __getattr__(self, name):",
            "        if name == 'pytest_pyfunc_call':",
            "            real = getattr(self.hooks, name)",
            "            return lambda pyfuncitem: pyfuncitem.name == 'test_adds' or real(",
            "                pyfuncitem=pyfuncitem)",
            "        return getattr(self.hooks, name)",
            "session.gethookproxy = lambda path: Proxy(real(path))",
        ),
    ),
    "an item of another class": Attack(
        "invalid", "is an item of another class",
        at_collection(
            "item.__class__ = type('Function', (type(item),), {'runtest': lambda self: None})"
        ),
    ),
    "the witness looks no more": Attack(
        "invalid", "was not looked at",
        at_later_collection(
            "for name in ('setup', 'call', 'teardown'):",
            "    caller = getattr(session.config.hook, 'pytest_runtest_' + name)",
            "    for each in caller.get_hookimpls():",
            "        if type(each.plugin).__name__ == 'Witness': caller._hookimpls.remove(each)",
            "by['test_adds'].obj = lambda: None",
        ),
    ),
    "a test goes by the name of another": Attack(
        "invalid", "test_helper is not the function that its file makes",
        at_later_collection(
            "slot = '_id' if hasattr(items[0], '_id') else '_nodeid'",
            "for one, other in (('test_nothing', 'test_helper'), ('test_helper', 'test_fixture')):",
            "    setattr(by[one], slot, getattr(by[other], slot))",
        ),
        mend=HELPER,
    ),
    "a wrapper that runs nothing and tells what it wraps": Attack(
        "invalid", "is not the function that its file makes",
        at_collection(
            "real = item.obj; item.obj = lambda: None; item.obj.__wrapped__ = real"
        ),
    ),
    "a profile function": Attack(
        "invalid", "is traced", at_import("import sys\nsys.setprofile(lambda *a: None)\n")
    ),
    "the items are removed": Attack(
        "failed", "test_adds is missing", at_later_collection("items.remove(by['test_adds'])")
    ),
    "a constant of the test's code is exchanged in memory": Attack(
        "invalid", "has another code",
        at_collection(
            "import ctypes; consts = item.obj.__code__.co_consts; "
            "at = consts.index(5); base = id(consts) + tuple.__basicsize__; "
            "ctypes.c_ssize_t.from_address(base + 8 * at).value = id(-1)"
        ),
    ),
    "AssertionError is what is skipped": Attack(
        "invalid", "",
        at_import("import builtins, pytest\nbuiltins.AssertionError = pytest.skip.Exception\n"),
    ),
    "an expected failure is put down for the test": Attack(
        "failed", "test_adds FAILED",
        sums(
            "    import gc, _pytest.skipping as s, _pytest.python as p\n"
            "    for each in gc.get_objects():\n"
            "        if type(each) is p.Function and each.name == 'test_adds':\n"
            "            each.stash[s.xfailed_key] = s.Xfail('later', True, False, None)\n"
            "    return a - b"
        ),
    ),
    "the caller's globals are edited": Attack(
        "invalid", "had add exchanged",
        sums(
            f"    import sys\n    sys._getframe(1).f_globals['add'] = {RIGHT}\n    return a - b"
        ),
    ),
    "unittest runs nothing": Attack(
        "invalid", "unittest", at_import("import unittest\nunittest.TestCase.run = lambda *a: None")
    ),
    "pytest.exit with 0": Attack(
        "invalid", "", sums("    import pytest; pytest.exit('done', returncode=0)")
    ),
    "an interrupt": Attack("invalid", "pytest ended with 2", sums("    raise KeyboardInterrupt")),
    "no descriptor is left": Attack(
        "invalid", "did not come to its end", at_import("import os; os.closerange(3, 4096)")
    ),
    "the reports go nowhere": Attack(
        "invalid", "did not come to its end",
        at_import(
            "import os\nnull = os.open('/dev/null', os.O_WRONLY)\n"
            "for fd in range(3, 64):\n    try:\n        os.fstat(fd)\n"
            "    except OSError: continue\n    if fd != null: os.dup2(null, fd)\n"
        ),
    ),
    "faulthandler ends the process": Attack(
        "invalid", "did not come to its end",
        at_import("import faulthandler, time\n"
                  "faulthandler.dump_traceback_later(0.05, exit=True)\n"
                  "while True: pass\n"),
    ),
    "an audit hook ends the process": Attack(
        "invalid", "did not come to its end: its process ended with exit code 0",
        at_import("import os, sys\nsys.addaudithook(lambda event, given:"
                  " event == 'builtins.input' or os._exit(0))\n"),
    ),
    "exceptions are swallowed by hooks of the interpreter": Attack(
        "failed", "test_adds FAILED",
        at_import("import sys, threading\nsys.excepthook = lambda *a: None\n"
                  "sys.unraisablehook = threading.excepthook = sys.excepthook\n"),
    ),
    "pytest is made unimportable": Attack(
        "invalid", "did not come to its end",
        at_import("import sys\nfor name in ('pytest', '_pytest', 'pluggy', 'unittest'):\n"
                  "    sys.modules[name] = None\n"),
    ),
    "options for the runs to come": Attack(
        "failed", "test_adds FAILED",
        at_import("import os\nos.environ['PYTEST_ADDOPTS'] = '--co'\n"
                  "os.environ['PYTEST_PLUGINS'] = 'tiny.sums'\n"
                  "os.environ['PYTHONPATH'] = '/nowhere'\n"),
    ),
    "a report at the exit": Attack(
        "failed", "test_adds FAILED",
        at_import("import atexit\n@atexit.register\ndef report():\n"
                  "    open('report.xml', 'w').write('<testsuite tests=\"9\" failures=\"0\"/>')\n"),
    ),
    "a finder of its own for a later test file": Attack(
        "invalid", "was not loaded from its file",
        at_import(
            "import importlib.util, sys\nclass Finder:\n    @staticmethod\n"
            "    def find_spec(name, path=None, target=None):\n"
            "        if name.rpartition('.')[2] != 'test_later': return None\n"
            "        return importlib.util.spec_from_loader(name, Finder, origin=PLACE)\n"
            "    @staticmethod\n    def create_module(spec): return None\n    @staticmethod\n"
            "    def exec_module(module):\n        module.__file__ = PLACE\n"
            "        exec(compile(open(PLACE).read().replace('== EXPECTED', '!= EXPECTED'),"
            " PLACE, 'exec'), vars(module))\n"
            "import os\nPLACE = os.path.abspath('tests/test_later.py')\n"
            "sys.meta_path.insert(0, Finder)\n"
        ),
        mend=CONSTANT,
    ),
    "a later test module that is there already": Attack(
        "invalid", "was not loaded from its file",
        at_import(
            "import os, sys, types\nplace = os.path.abspath('tests/test_later.py')\n"
            "for name in ('test_later', 'tests.test_later'):\n"
            "    fake = sys.modules[name] = types.ModuleType(name)\n"
            "    fake.__file__ = place\n"
            "    exec('def test_constant(): pass\\ndef test_same(): pass', vars(fake))\n"
        ),
        mend=CONSTANT,
    ),
    "a constant of the test file": Attack(
        "invalid", "had EXPECTED exchanged",
        at_later_collection("by['test_constant'].module.EXPECTED = -1"), mend=CONSTANT,
    ),
    "a helper of the test file": Attack(
        "invalid", "had check exchanged",
        at_later_collection("by['test_helper'].module.check = print"), mend=HELPER,
    ),
    "the code of a helper of the test file": Attack(
        "invalid", "had check exchanged",
        at_later_collection(
            "def nothing(found, wanted): pass",
            "by['test_helper'].module.check.__code__ = nothing.__code__",
        ),
        mend=HELPER,
    ),
    "an assertion of the test's own class": Attack(
        "invalid", "had LaterTest exchanged",
        at_later_collection(
            "by['test_class'].module.LaterTest.assertEqual = lambda *a, **k: None"
        ),
        mend=CLASS,
    ),
    "classes are built with more than is written": Attack(
        "invalid", "had LaterTest exchanged",
        at_import(
            "import builtins\nreal = builtins.__build_class__\n"
            "def built(body, name, *bases, **rest):\n"
            "    made = real(body, name, *bases, **rest)\n"
            "    if name == 'LaterTest':\n        made.assertEqual = lambda *a, **k: None\n"
            "        builtins.__build_class__ = real\n    return made\n"
            "builtins.__build_class__ = built\n"
        ),
        mend=CLASS,
    ),
    "a builtin that is put back by another test": Attack(
        "invalid", "builtins.len",
        at_import(
            "import builtins\nreal = len\n"
            "builtins.len = lambda n: 5 if n is not None and n == range(-1) else real(n)\n"
        )
        | {
            "tiny/sums.py": "calls = []\n\n\ndef add(a, b):\n    return a - b\n\n\n"
            "def same(a):\n    calls.append(a)\n    if len(calls) == 2:\n"
            "        import builtins, tiny\n        builtins.len = tiny.real\n    return a\n",
        },
        mend=BUILTIN,
    ),
    "a parameter of the test": Attack(
        "invalid", "has other parameters",
        at_later_collection("by['test_parameters[2-3]'].callspec.params['b'] = 0"),
        mend=PARAMETERS,
    ),
    "a fixture of the tests": Attack(
        "invalid", "has a fixture three of another",
        at_later_collection(
            "for each in by['test_fixture']._fixtureinfo.name2fixturedefs['three']:",
            "    each.func = lambda: -3",
        ),
        mend=FIXTURE,
    ),
}  # fmt: skip
