"""The frame around a command, without a shell: whatever bytes come, in whatever pieces."""

import shlex

from hypothesis import given
from hypothesis import strategies as st

from sandbox.boxes.frame import Frame, HeadAndTail, quoted

PIECES = st.lists(st.integers(1, 40), max_size=30)


def in_pieces(text: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(text[:size])
        text = text[size:]
    return [*pieces, text]


def marks_of(frame: Frame) -> tuple[bytes, bytes]:
    """What a shell prints before and after a command, less the exit code."""
    words = shlex.split(frame.around(":", status=0, subshell=False).decode())
    nonce = words[words.index("%s<") + 1].rstrip(";").encode()
    return nonce + b"<", nonce + b">"


@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 255), PIECES)
def test_a_command_is_found_whole_in_whatever_surrounds_it(
    left_over: bytes, printed: bytes, code: int, sizes: list[int]
) -> None:
    frame = Frame()
    opens, closes = marks_of(frame)
    stream = left_over + opens + printed + closes + b"%03d" % code

    found = b"".join(frame.take(piece) for piece in in_pieces(stream, sizes))

    assert (found, frame.exit_code, frame.rest()) == (printed, code, b"")


@given(st.binary(max_size=200), PIECES)
def test_a_frame_that_is_never_closed_gives_all_that_came(printed: bytes, sizes: list[int]) -> None:
    frame = Frame()
    opens, closes = marks_of(frame)
    printed += closes[:-1]  # as if it were about to close

    found = b"".join(frame.take(piece) for piece in in_pieces(opens + printed, sizes))

    assert (found + frame.rest(), frame.exit_code) == (printed, None)


def test_the_frame_of_another_command_opens_and_closes_nothing() -> None:
    frame, other = Frame(), Frame()
    opens, closes = marks_of(frame)
    fake = b"".join([*marks_of(other), b"000"])

    found = frame.take(opens + fake + closes + b"007")

    assert (found, frame.exit_code) == (fake, 7)


@given(st.text(max_size=200))
def test_a_quoted_text_is_one_word_to_a_shell(text: str) -> None:
    assert shlex.split(quoted(text)) == [text]


@given(
    st.lists(st.one_of(st.binary(max_size=40), st.just("é☃🂡".encode()), st.just(b"/box/7/w"))),
    st.integers(0, 30), st.integers(0, 30), PIECES,
)  # fmt: skip
def test_beginning_and_end_are_the_same_in_whatever_pieces_the_text_comes(
    parts: list[bytes], head: int, tail: int, sizes: list[int]
) -> None:
    stream = b"".join(parts)
    kept = HeadAndTail(head, tail, {b"/box/7/w": b"~", b"/box/7": b"~/.."})

    for piece in in_pieces(stream, sizes):
        kept.add(piece)
    text, elided = kept.text()

    whole = stream.replace(b"/box/7/w", b"~").replace(b"/box/7", b"~/..").decode("utf-8", "replace")
    assert elided == max(0, len(whole) - head - tail)
    if elided:
        end = whole[len(whole) - tail :]
        assert text == f"{whole[:head]}\n[{elided} characters left out]\n{end}"
    else:
        assert text == whole


@given(st.binary(min_size=3, max_size=3))
def test_whatever_forges_the_end_of_a_frame_gives_an_exit_code(code: bytes) -> None:
    frame = Frame()
    opens, closes = marks_of(frame)

    assert frame.take(opens + b"printed" + closes + code) == b"printed"
    assert frame.exit_code is not None
    assert 0 <= frame.exit_code <= 255
