"""`make vllm` runs every vLLM case: no case is left out because of its parameters."""

import subprocess
import sys
from pathlib import Path

from tests.support.command_line import ROOT

CONTRACT = "tests/inference/test_engine_contract.py"
COLLECT = """
import sys
import pytest

class Marked:
    def pytest_collection_modifyitems(self, items):
        for item in items:
            print("case", "vllm" if item.get_closest_marker("vllm") else "-", item.nodeid)

sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", sys.argv[1]], [Marked()]))
"""


def collected(path: str) -> list[tuple[str, str]]:
    """The cases of a file, each after its mark of vLLM's or a dash."""
    done = subprocess.run(
        [sys.executable, "-c", COLLECT, path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    told = [line.split(" ", 2) for line in done.stdout.splitlines() if line.startswith("case ")]
    return [(mark, case) for _, mark, case in told]


def test_vllm_runs_every_contract_case_of_transformers() -> None:
    found = collected(CONTRACT)

    marked = [case for mark, case in found if mark == "vllm"]
    every = [case for _, case in found]
    put_to = {case.removesuffix("[transformers]") for case in every if "[transformers]" in case}
    assert {case.removesuffix("[vllm]") for case in marked} == put_to
    assert len(marked) == len(put_to) >= 16


def test_make_vllm_runs_every_file_that_has_marked_cases() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\nvllm:")[2].partition("\n\n")[0]
    files = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if "pytest.mark.vllm" in path.read_text() and path != Path(__file__)
    }

    assert len(files) >= 3
    assert {word for word in recipe.split() if word.startswith("tests/")} == files
