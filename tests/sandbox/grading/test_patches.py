"""Checks of a patch before it is applied."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.sandbox.grading.patches import complaint, links, renamed_away

LINES = st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line), max_size=8)


def link(
    target: bytes, header: bytes = b"new file mode 120000", place: bytes = b"l", mode: bytes = b""
) -> bytes:
    return (
        b"diff --git a/l b/%s\n" % place + header + b"\nindex 0000000..1111111" + mode
        + b"\n--- /dev/null\n+++ b/" + place + b"\n@@ -0,0 +1 @@\n+" + target
        + b"\n\\ No newline at end of file\n"
    )  # fmt: skip


def code(patch: bytes) -> str:
    wrong = complaint(patch)
    return wrong.code if wrong else ""


@given(LINES, LINES)
def test_hunk_lines_are_never_read_as_mode_headers(
    removed: list[bytes], added: list[bytes]
) -> None:
    tricks = [b"new file mode 120000", b"new mode 160000", b"diff --git a/x b/x"]
    body = b"\n".join([b"-" + line for line in removed + tricks] + [b"+" + x for x in added])
    patch = b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,9 +1,9 @@\n" + body + b"\n"

    assert code(patch) == ""


@given(st.binary(min_size=1, max_size=40).filter(lambda line: not set(b"\r\n") & set(line)))
def test_link_that_stays_inside_the_tree_is_accepted(target: bytes) -> None:
    out = target.startswith(b"/") or b".." in target.split(b"/")

    # A target with this prefix looks like a header, and is refused because it is ambiguous.
    assert (code(link(target)) == "link") == (out or target.startswith(b"++ "))


@pytest.mark.parametrize(
    ("place", "target", "out"),
    [
        (b"sub/up", b"../sums.py", False),
        (b"a/b/c", b"../../sums.py", False),
        (b"a/b/c", b".././x/y", False),
        (b'"a/\\303\\244/c"', b"../../x", False),
        (b"up", b"../x", True),
        (b"a/up", b"../../x", True),
        (b"a/b/c", b"../x/../y", True),
        (b"a//./c", b"../../x", True),
        (b"a/b/c", b"/x", True),
    ],
)
def test_relative_link_is_refused_if_it_leads_above_the_tree(
    place: bytes, target: bytes, out: bool
) -> None:
    assert (code(link(target, place=place)) == "link") == out


def test_changed_link_target_is_detected() -> None:
    assert code(link(b"/etc", b"similarity index 90%", mode=b" 120000")) == "link"
    assert code(link(b"x", b"similarity index 90%", mode=b" 120000")) == ""


def test_file_turned_into_a_link_and_binary_link_are_detected() -> None:
    assert code(link(b"/etc", b"old mode 100644\nnew mode 120000")) == "link"
    assert code(link(b"/etc", b"new file mode 120000\r")) == "link"
    binary = b"diff --git a/l b/l\nnew file mode 120000\nGIT binary patch\nliteral 3\nKcmZ\n"
    assert list(links(binary)) == [(b"", None)]
    assert code(binary) == "link"


def test_removed_link_is_accepted() -> None:
    patch = link(b"x").replace(b"new file mode", b"deleted file mode")

    assert code(patch) == ""


def test_renamed_files_are_found_by_name() -> None:
    patch = b'diff --git a/x b/y\nrename from "a/conftest.py"\nrename to b\n-rename from z.py\n'

    assert renamed_away(patch, {"conftest.py"}) == "a/conftest.py"
    assert renamed_away(patch, {"z.py", "test.py"}) == ""


@given(st.binary(max_size=200))
def test_any_bytes_are_accepted_as_a_patch(patch: bytes) -> None:
    complaint(patch)
    assert code(patch + b"\ndiff --git ") != "empty"
