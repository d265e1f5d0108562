"""Checks of a patch before it is applied. Pure.

They find only what git would accept and should not. git itself checks paths: it refuses `..`,
absolute paths, `.git` and paths beyond a symbolic link.
"""

import re
from collections.abc import Collection, Iterator

from rollcall.sandbox.boxes.tar_streams import leads_out
from rollcall.sandbox.grading.verdict import Verdict

MOST_BYTES = 16 << 20
LINK = re.compile(
    rb"^(?:new file mode|new mode|index [0-9a-f]+\.\.[0-9a-f]+) 120000\r?$", re.MULTILINE
)
SUBMODULE = re.compile(rb"^(?:new file mode|new mode) 160000\r?$", re.MULTILINE)
SECTION = re.compile(rb"^(?=diff --git )", re.MULTILINE)
BEGINS = re.compile(rb"^(?:diff --git |--- \S)", re.MULTILINE)
RENAMED = re.compile(rb"^rename from (.*?)\r?$", re.MULTILINE)
TARGET = re.compile(rb"^\+(?!\+\+ )(.*)$", re.MULTILINE)
PLACE = re.compile(rb"^\+\+\+ (.*)$", re.MULTILINE)


def complaint(patch: bytes) -> Verdict | None:
    """Return the verdict on a patch that is refused before it is applied; else None."""
    if not patch.strip():
        return Verdict("empty", "the patch is empty")
    if len(patch) > MOST_BYTES:
        return too_large(len(patch))
    if not BEGINS.search(patch):
        return Verdict("not_applied", "it is no patch: nothing in it begins a difference")
    if SUBMODULE.search(patch):
        return Verdict("submodule", "it makes a submodule, whose files nobody has")
    for place, target in links(patch):
        if target is None or _leads_out(place, target):
            shown = "whose end cannot be told" if target is None else f"to {target[:100]!r}"
            return Verdict("link", f"it makes a link {shown}")
    return None


def _leads_out(place: bytes, target: bytes) -> bool:
    """Return True for a link that could lead out of the tree; `place` begins with `b/`."""
    parts = [part for part in place.split(b"/") if part not in (b"", b".")]
    above = max(len(parts) - 2, 0)  # without `b` and the link's own name
    return leads_out(target.decode("latin-1"), above=above)


def renamed_away(patch: bytes, names: Collection[str]) -> str:
    """Return the first file with one of these names that a patch renames; empty if none."""
    for found in RENAMED.findall(patch):
        path: str = found.strip(b'"').decode(errors="replace")
        if path.rpartition("/")[2] in names:
            return path
    return ""


def too_large(size_bytes: int) -> Verdict:
    """Return the verdict on a patch of too many bytes, which need not be read."""
    return Verdict("too_large", f"a patch of {size_bytes:,} bytes; {MOST_BYTES:,} can be")


def links(patch: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield place and target of each link that a patch makes or changes; None if it is unclear.

    No line of a hunk or of binary data can begin like a mode line, so no link is missed.
    """
    for section in SECTION.split(patch):
        if LINK.search(section):
            targets, place = TARGET.findall(section), PLACE.search(section)
            yield (place[1], targets[0]) if place and len(targets) == 1 else (b"", None)
