"""A repository with a bug, and rows of a data set about it."""

import json
from pathlib import Path
from typing import Any

from rollcall.sandbox.tasks.git_trees import git
from rollcall.sandbox.tasks.harbor import HarborTask
from rollcall.sandbox.tasks.proof import Prover, unproven
from rollcall.sandbox.tasks.swe import ImportedRow, import_rows

RIGHT = "def add(a, b):\n    return a + b\n"


class Repository:
    """One with a bug, as `acme/sums` in a folder of clones, and rows about it."""

    def __init__(self, clones: Path) -> None:
        self.clones, self.work = clones, clones / "acme__sums"
        (self.work / "tests").mkdir(parents=True)
        (self.work / "tests" / "__init__.py").write_text("")
        (self.work / "sums.py").write_text(RIGHT.replace("+", "-"))
        git(self.work, "init", "-q")
        git(self.work, "add", "-A")
        git(self.work, "commit", "-q", "-m", "base")

    def patch(self, files: dict[str, str]) -> str:
        for name, text in files.items():
            (self.work / name).write_text(text)
        git(self.work, "add", "-A")
        made = git(self.work, "diff", "--cached", "--binary").decode()
        git(self.work, "reset", "-q", "--hard")
        return made

    def task(self, into: Path, tests: dict[str, str], **row: Any) -> HarborTask:
        """The task of a row with this test patch, not proven. Fails where it is refused."""
        imported = self.imported(into, tests, lambda task: unproven(task, "no box"), **row)
        assert imported.task, imported.refused
        return imported.task

    def imported(
        self, into: Path, tests: dict[str, str], prover: Prover, **row: Any
    ) -> ImportedRow:
        """What becomes of a row with this test patch."""
        whole = {
            "instance_id": "acme__sums-1",
            "repo": "acme/sums",
            "base_commit": git(self.work, "rev-parse", "HEAD").decode().strip(),
            "patch": self.patch({"sums.py": RIGHT}),
            "test_patch": self.patch(tests),
            "problem_statement": "Sums are differences.",
            **row,
        }
        (imported,) = import_rows([json.dumps(whole).encode()], into, self.clones, prover)
        return imported
