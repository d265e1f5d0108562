"""The five release pairs of suite B; one of them is built for real if there is a package index."""

import asyncio
import sys
from pathlib import Path

import pytest

from rollcall.sandbox.tasks.harbor import read_task
from rollcall.sandbox.tasks.release_pair import build_pair, check_pair
from rollcall.sandbox.tasks.suite_b import SUITE_B
from rollcall.sandbox.tasks.suite_runs import suite_box


def test_all_five_release_pairs_have_digests_and_counts() -> None:
    for pair in SUITE_B:
        check_pair(pair)

    assert len({pair.title for pair in SUITE_B}) == 5
    assert all(len(digest) == 64 for pair in SUITE_B for digest in pair.sha256)
    assert all(mend > 0 and keep > 90 for mend, keep in (pair.counts for pair in SUITE_B))


@pytest.mark.index
@pytest.mark.timeout(600)
def test_real_release_pair_has_the_recorded_counts(tmp_path: Path) -> None:
    pair = next(pair for pair in SUITE_B if pair.name == "pathspec")

    async def whole() -> None:
        box = await suite_box("local", programs=Path(sys.executable).parent)
        await build_pair(pair, tmp_path, box, print)

    asyncio.run(whole())

    task = read_task(tmp_path / "pathspec-0.12.0-0.12.1")
    (test,) = task.file.verifier.fail_to_pass
    assert test.startswith("tests/test_03_pathspec.py::PathSpecTest::test_01_match_file_3_unmatch")
