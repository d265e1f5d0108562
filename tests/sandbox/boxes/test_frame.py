"""The frame around a command, without a shell: any bytes, in chunks of any size."""

import shlex

from hypothesis import given
from hypothesis import strategies as st

from rollcall.sandbox.boxes.frame import Frame, HeadAndTail, quote

PIECES = st.lists(st.integers(1, 40), max_size=30)


def in_pieces(text: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(text[:size])
        text = text[size:]
    return [*pieces, text]


def marks_of(frame: Frame) -> tuple[bytes, bytes]:
    """The marks that a shell prints before and after a command, without the exit code."""
    words = shlex.split(frame.around(":", status=0, subshell=False).decode())
    nonce = words[words.index("%s<") + 1].rstrip(";").encode()
    return nonce + b"<", nonce + b">"


@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 255), PIECES)
def test_framed_output_is_extracted_from_surrounding_bytes(
    left_over: bytes, printed: bytes, code: int, sizes: list[int]
) -> None:
    frame = Frame()
    opens, closes = marks_of(frame)
    stream = left_over + opens + printed + closes + b"%03d" % code

    found = b"".join(frame.take(piece) for piece in in_pieces(stream, sizes))

    assert (found, frame.exit_code, frame.rest()) == (printed, code, b"")


@given(st.binary(max_size=200), PIECES)
def test_unclosed_frame_returns_all_received_bytes(printed: bytes, sizes: list[int]) -> None:
    frame = Frame()
    opens, closes = marks_of(frame)
    printed += closes[:-1]  # as if it were about to close

    found = b"".join(frame.take(piece) for piece in in_pieces(opens + printed, sizes))

    assert (found + frame.rest(), frame.exit_code) == (printed, None)


def test_frame_marks_of_another_command_are_plain_output() -> None:
    frame, other = Frame(), Frame()
    opens, closes = marks_of(frame)
    fake = b"".join([*marks_of(other), b"000"])

    found = frame.take(opens + fake + closes + b"007")

    assert (found, frame.exit_code) == (fake, 7)


@given(st.text(max_size=200))
def test_quoted_text_is_one_shell_word(text: str) -> None:
    assert shlex.split(quote(text)) == [text]


@given(
    st.lists(st.one_of(st.binary(max_size=40), st.just("é☃🂡".encode()), st.just(b"/box/7/w"))),
    st.integers(0, 30), st.integers(0, 30), PIECES,
)  # fmt: skip
def test_head_and_tail_are_independent_of_chunk_boundaries(
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
def test_forged_end_of_frame_still_gives_a_valid_exit_code(code: bytes) -> None:
    frame = Frame()
    opens, closes = marks_of(frame)

    assert frame.take(opens + b"printed" + closes + code) == b"printed"
    assert frame.exit_code is not None
    assert 0 <= frame.exit_code <= 255
