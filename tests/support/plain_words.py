"""Count the docstrings that open with a clause or a genitive; `make lint` allows a share of them.

A docstring starts with a verb in the imperative or with the noun that it defines, so that a reader
knows from the first word what a thing does or is.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.rooms import ROOMS

ROOT = Path(__file__).parents[2]
OPENINGS = frozenset(
    ("what", "of", "who", "whoever", "whose", "whom", "whether", "nobody", "how", "as", "where")
)


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring of a file, those of fields and constants among them."""
    for node in ast.walk(ast.parse(path.read_text())):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.lineno, value.value


def opens_badly(text: str) -> bool:
    """Whether the first word is one of OPENINGS."""
    words = text.split(maxsplit=1)
    return bool(words) and words[0].strip("`,.:;").lower() in OPENINGS


def main(most_percent: float) -> int:
    """Print the share and the worst files; 1 where the share is above the bound."""
    counts: dict[str, int] = {}
    bad = total = 0
    for path in sorted(each for room in ROOMS for each in (ROOT / room).rglob("*.py")):
        found = [opens_badly(text) for _, text in docstrings(path)]
        counts[str(path.relative_to(ROOT))] = sum(found)
        bad, total = bad + sum(found), total + len(found)
    share = 100 * bad / total
    print(f"{bad:,} of {total:,} docstrings ({share:.1f} %) open with a clause")
    if share <= most_percent:
        return 0
    for name in sorted(counts, key=counts.__getitem__, reverse=True)[:10]:
        print(f"  {counts[name]:3} {name}")
    return 1


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
