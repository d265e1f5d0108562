"""The pages for people: what they show and what they name."""

import re
import shlex

from tests.support.command_line import ROOT

PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("[a-z]*/**/README.md")])
}
"""By path: every README, and CONTRIBUTING.md."""
NOT_RUN = {"demo", "run", "up", "chaos", "bench"}
"""Commands that set up or load a whole machine: other tests run what they call."""


def blocks(language: str, page: str | None = None) -> list[str]:
    """The fenced blocks of one language, of one page or of all."""
    texts = PAGES.values() if page is None else [PAGES[page]]
    return [
        block
        for text in texts
        for block in re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    ]


def users_code() -> list[str]:
    """The blocks of Python that a user of ours would write."""
    return [*blocks("python", "README.md"), *blocks("python", "trainer/README.md")]


def commands(block: str) -> list[list[str]]:
    """The lines of a shell block, in words."""
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    return [words for words in lines if words]


def is_run(words: list[str]) -> bool:
    """Whether a test runs a line of a shell block."""
    return words[0] != "make" and words[1] not in NOT_RUN


def script(block: str) -> str:
    """A shell block without what a test does not run."""
    return "\n".join(line for line in block.splitlines() for w in commands(line) if is_run(w))


def quoted(page: str) -> list[str]:
    """What stands in backticks in running text and tables."""
    prose = re.sub(r"^```.*?^```", "", PAGES[page], flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`\n]+)`", prose)
