"""`make vllm` plays every case of vLLM: none is left out because of how it is called."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONTRACT = "tests/inference/test_engine_contract.py"


def collected(*words: str) -> list[str]:
    """The cases that pytest would run."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *words],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return [line.strip() for line in done.stdout.splitlines() if "::" in line]


def test_vllm_is_put_to_every_case_of_the_contract_that_transformers_is() -> None:
    every, marked = collected(CONTRACT), collected(CONTRACT, "-m", "vllm")

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

    assert len(files) >= 2
    assert {word for word in recipe.split() if word.startswith("tests/")} == files
