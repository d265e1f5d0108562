"""Rows of data sets are imported and graded as SWE-bench grades them.

Some rows run real tests; in others the tests print a prepared log and end with an exit code.
"""

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollcall.sandbox.boxes.box import Spec, driver
from rollcall.sandbox.boxes.tar_streams import of_files
from rollcall.sandbox.grading.grading import grade
from rollcall.sandbox.grading.reference import Reference, reference_of
from rollcall.sandbox.grading.verdict import Verdict
from rollcall.sandbox.tasks import swe
from rollcall.sandbox.tasks.harbor import HarborTask
from tests.support.swe_repository import Repository
from tests.support.tiers import cases

IDLE = b"diff --git a/more b/more\nnew file mode 100644\n"
TESTS = """\
import unittest
import pytest
from sums import add

def test_adds():
    assert add(2, 3) == 5

@pytest.mark.xfail
def test_later():
    assert add(2, 3) == 5 and False

@pytest.mark.skip
def test_elsewhere():
    pass

def test_zero():
    assert add(0, 0) == 0

class SumsTest(unittest.TestCase):
    def test_adds(self):
        self.assertEqual(add(1, 1), 2)
"""
FILE = "tests/test_sums.py"


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository(tmp_path_factory.mktemp("clones"))


def reference(task: HarborTask) -> Reference:
    """The reference of a task, without the image that its Dockerfile would build."""
    given = reference_of(task, Spec())
    env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # plugins take longer than all the rest
    return replace(given, verifier=given.verifier.model_copy(update={"env": env}))


def judged(given: Reference, patch: bytes | None) -> Verdict:
    assert patch is not None
    return asyncio.run(grade(driver("local").open, given, patch))


FORMS: dict[str, dict[str, Any]] = {
    "lists as JSON text, and nothing on how tests are run": {
        "FAIL_TO_PASS": json.dumps([f"{FILE}::test_adds", f"{FILE}::SumsTest::test_adds"]),
        "PASS_TO_PASS": json.dumps([f"{FILE}::test_zero", f"{FILE}::test_elsewhere"]),
        "version": "1.0",
        "environment_setup_commit": "0" * 40,
    },
    "lists, install_config and the name of an image": {
        "FAIL_TO_PASS": [f"{FILE}::test_adds"],
        "PASS_TO_PASS": [f"{FILE}::test_zero", f"{FILE}::test_later"],
        "docker_image": "swerebench/sweb.eval.x86_64.acme_1776_sums-1",
        "image_name": None,
        "install_config": {
            "python": "3.9",
            "install": "pip install -e .",
            "pip_packages": None,
            "log_parser": "parse_log_pytest",
            "test_cmd": f"{sys.executable} -m pytest --no-header -rA --tb=line --color=no"
            " -p no:cacheprovider -W ignore::DeprecationWarning",
        },
    },
    "names of unittest, and install_config as JSON text": {
        "FAIL_TO_PASS": '["test_adds (tests.test_sums.SumsTest)"]',
        "install_config": json.dumps(
            {
                "log_parser": "parse_log_django",
                "test_cmd": [f"{sys.executable} -m unittest -v tests.test_sums"],
            }
        ),
    },
}


@pytest.mark.parametrize("form", cases(FORMS))
def test_gold_patch_resolves_each_row_form_and_idle_patch_does_not(
    acme: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(swe, "PYTEST", swe.PYTEST.replace("python3", sys.executable))
    task = acme.task(tmp_path, {FILE: TESTS}, **FORMS[form])

    verdict = judged(reference(task), task.gold)
    assert verdict.resolved, verdict
    verdict = judged(reference(task), IDLE)
    assert (verdict.code, "fail-to-pass do not pass" in verdict.reason) == ("failed", True)


SUMMARY = "=== short test summary info ==="
LOGS = [
    # Log, exit code, verdict on MEND and KEEP, and a part of its reason
    ("PASSED mend\nPASSED keep", 0, "resolved", ""),
    ("XFAIL mend - later\nPASSED keep", 0, "resolved", ""),
    ("PASSED mend\nXFAIL keep", 0, "resolved", ""),
    ("PASSED mend\nXPASS keep", 0, "failed", "keep XPASS"),
    ("XPASS mend\nPASSED keep", 0, "failed", "mend XPASS"),
    ("FAILED mend - no\nPASSED keep", 1, "failed", "mend FAILED"),
    ("ERROR mend\nPASSED keep", 1, "failed", "mend ERROR"),
    ("PASSED mend\nFAILED keep", 1, "failed", "keep FAILED"),
    ("PASSED mend\nPASSED keep\nERROR keep - torn down", 1, "failed", "keep ERROR"),
    ("PASSED mend\nPASSED keep\nFAILED other - as ever", 1, "resolved", ""),
    ("PASSED mend", 0, "failed", "keep is missing"),
    ("PASSED keep", 0, "failed", "mend is missing"),
    ("PASSED mend\nSKIPPED [1] keep.py:3: why", 0, "failed", "keep is missing"),
    ("SKIPPED [1] mend.py:3: why\nPASSED keep", 0, "failed", "mend is missing"),
    ("", 0, "failed", "1 of 1 pass-to-pass"),
    ("PASSED mend\nPASSED keep", 1, "invalid", "no test failed or erred"),
    ("PASSED mend\nPASSED keep\nFAILED other", 0, "invalid", "exit code 0"),
    ("PASSED mend\nPASSED keep\n3 passed in 0.1s", 0, "invalid", "counts 3 PASSED"),
    ("PASSED mend\nPASSED keep\n2 passed in 0.1s", 0, "resolved", ""),
]


@pytest.fixture(scope="module")
def printed(acme: Repository, tmp_path_factory: pytest.TempPathFactory) -> HarborTask:
    """The task of a row whose tests are a log."""
    how = {"test_cmd": "cat tests/log", "log_parser": "parse_log_pytest_v2"}
    row = {"FAIL_TO_PASS": ["mend"], "PASS_TO_PASS": ["keep"], "install_config": how}
    return acme.task(tmp_path_factory.mktemp("tasks"), {"tests/log": "as follows\n"}, **row)


@pytest.mark.parametrize(("log", "code", "verdict", "says"), cases(LOGS, 4))
def test_verdict_follows_from_log_outcomes_and_exit_code(
    printed: HarborTask, log: str, code: int, verdict: str, says: str
) -> None:
    given = reference(printed)
    command = f"{given.verifier.command}; exit {code}"
    tests = f"PASSED mend\nPASSED keep\n{SUMMARY}\n{log}\n"
    given = replace(
        given,
        verifier=given.verifier.model_copy(update={"command": command}),
        tests=of_files({"tests/log": tests.encode(), "tests/test_it.py": b"# xfail, skip"}),
    )

    found = judged(given, printed.gold)
    assert (found.code, says in found.reason) == (verdict, True), found


@pytest.mark.parametrize(
    ("tests", "says"),
    [
        ({"FAIL_TO_PASS": []}, "FAIL_TO_PASS is empty"),
        ({"FAIL_TO_PASS": "[]", "PASS_TO_PASS": '["a::b"]'}, "FAIL_TO_PASS is empty"),
        ({"FAIL_TO_PASS": None}, "FAIL_TO_PASS is empty"),
        ({"FAIL_TO_PASS": "a::b"}, "no JSON list"),
        ({"FAIL_TO_PASS": "[1, 2]"}, "FAIL_TO_PASS"),
        ({"FAIL_TO_PASS": ["a::b"], "install_config": "{"}, "install_config"),
        ({"FAIL_TO_PASS": ["a::b"], "install_config": "[]"}, "install_config"),
        ({"FAIL_TO_PASS": ["a::b"], "install_config": {"log_parser": "x"}}, "how its tests"),
    ],
)
def test_row_without_usable_criteria_is_refused(
    acme: Repository, tmp_path: Path, tests: dict[str, Any], says: str
) -> None:
    with pytest.raises(AssertionError) as refused:
        acme.task(tmp_path, {FILE: TESTS}, **tests)

    assert says in str(refused.value)
