"""Dataset rows are proven by grading them in directories of this host."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from rollcall.compose.settings import RewardsSettings
from rollcall.sandbox.boxes.box import Spec, driver
from rollcall.sandbox.tasks.harbor import HarborTask
from rollcall.sandbox.tasks.proof import Proof, prover
from rollcall.sandbox.tasks.suite_runs import programs_first
from rollcall.sandbox.tasks.swe import ImportedRow
from rollcall.schemas.errors import WorkFailed
from tests.support.swe_repository import Repository
from tests.support.tiers import cases

FILE = "tests/test_sums.py"
ADDS = "from sums import add\n\ndef test_adds():\n    assert add(2, 3) == 5\n\n"
ZERO = "def test_zero():\n    assert add(0, 0) == 0\n\n"
MOST_S = RewardsSettings().waiting_timeout_s
ENV = {**programs_first(Path(sys.executable).parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
PROVER = prover(driver("local").open, MOST_S, Spec(env=ENV))


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository(tmp_path_factory.mktemp("clones"))


def imported(acme: Repository, into: Path, tests: str, **row: Any) -> ImportedRow:
    names = [line[4:].partition("(")[0] for line in tests.splitlines() if line.startswith("def ")]
    given = {
        "FAIL_TO_PASS": [f"{FILE}::test_adds"],
        "PASS_TO_PASS": [f"{FILE}::{n}" for n in names],
    }
    return acme.imported(into, {FILE: tests}, PROVER, **{**given, **row})


def test_row_resolved_by_its_gold_patch_is_marked_as_proven(
    acme: Repository, tmp_path: Path
) -> None:
    row = imported(acme, tmp_path, ADDS + ZERO)

    assert (row.refused, row.unproven, row.dropped) == ("", "", 0)
    assert row.task is not None
    assert row.task.file.metadata["proven"] is True
    assert row.task.file.verifier.pass_to_pass == (f"{FILE}::test_zero",)


def test_tests_that_do_not_always_pass_with_gold_are_dropped(
    acme: Repository, tmp_path: Path
) -> None:
    count = tmp_path / "count"
    tests = f"""{ADDS}{ZERO}
from pathlib import Path

def test_now_and_then():
    count = Path({str(count)!r})
    count.write_text(count.read_text() + "." if count.exists() else ".")
    assert len(count.read_text()) % 3

def test_of_the_network():
    raise OSError("no network")

def test_first():
    test_first.ran = True

def test_after_the_first():
    assert add(1, 1) == 2 and test_first.ran
"""
    mend = [f"{FILE}::{name}" for name in ("test_adds", "test_after_the_first")]

    row = imported(acme, tmp_path, tests, FAIL_TO_PASS=mend)

    assert (row.refused, row.dropped) == ("", 3)
    assert row.task is not None
    verifier = row.task.file.verifier
    assert verifier.fail_to_pass == (f"{FILE}::test_adds",)
    assert verifier.pass_to_pass == (f"{FILE}::test_first", f"{FILE}::test_zero")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "gold that mends nothing": (
        {"patch": "sums.py: return a * b"},
        "does not resolve it with its own gold patch: failed: 1 of 1 fail-to-pass",
    ),
    "gold that only says how tests are run": (
        {"patch": "setup.cfg: [tool:pytest]\naddopts = -p no:x"},
        "does not resolve it with its own gold patch: only_tests",
    ),
    "tests that pass without it": (
        {"FAIL_TO_PASS": [f"{FILE}::test_zero"], "PASS_TO_PASS": []},
        "with a patch that mends nothing it must fail, and the judge says resolved",
    ),
    "tests that nothing can read": (
        {"install_config": {"test_cmd": "exit 127", "log_parser": "pytest"}},
        "the judge cannot judge it: the tests' command cannot be run",
    ),
}


@pytest.mark.parametrize("kind", cases(REFUSED))
def test_row_that_cannot_distinguish_right_from_wrong_is_refused(
    acme: Repository, tmp_path: Path, kind: str
) -> None:
    changes, said = REFUSED[kind]
    if "patch" in changes:
        name, _, text = str(changes["patch"]).partition(": ")
        files = {name: f"def add(a, b):\n    {text}\n" if name.endswith(".py") else f"{text}\n"}
        changes = {"patch": acme.patch(files)}

    row = imported(acme, tmp_path / "into", ADDS + ZERO, **changes)

    assert said in row.refused
    assert os.listdir(tmp_path / "into") == []


def test_row_without_a_usable_image_is_marked_as_not_proven(
    acme: Repository, tmp_path: Path
) -> None:
    async def none(spec: Spec) -> Any:
        raise WorkFailed("image", "there is none of that name", retriable=False)

    def proves(task: HarborTask) -> Proof:
        return prover(none, MOST_S)(task)

    row = acme.imported(tmp_path, {FILE: ADDS}, proves, FAIL_TO_PASS=[f"{FILE}::test_adds"])

    assert row.task is not None
    assert row.task.file.metadata["proven"] is False
    assert row.unproven == "there is none of that name"


def test_row_with_tests_slower_than_the_scorer_timeout_is_refused(
    acme: Repository, tmp_path: Path
) -> None:
    row = acme.imported(
        tmp_path, {FILE: ADDS}, prover(driver("local").open, 1800.0),
        FAIL_TO_PASS=[f"{FILE}::test_adds"],
    )  # fmt: skip

    assert "its tests may take 1800 s" in row.refused
    assert "raise rewards.waiting_timeout_s" in row.refused
