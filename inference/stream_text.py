"""Text of sampled tokens, as far as it is certain: a character may span several tokens."""

from collections.abc import Callable, Sequence
from typing import Protocol

UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class Tokens(Protocol):
    """Decodes tokens for stop strings."""

    def whole(self, ids: Sequence[int]) -> str:
        """The text of tokens with special ones as they are spelled."""
        ...


class Spoken:
    """The text of tokens that come one by one; a character appears when its last token is there.

    `text` only ever grows. Only the last few tokens are decoded each time, beside their
    predecessors, since some tokenizers write a token differently at the beginning.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self.text = ""
        self._decode = decode
        self._ids: list[int] = []
        self._before = 0
        self._shown = 0

    def push(self, token: int) -> str:
        """Take one token; return the text that has become certain with it."""
        self._ids.append(token)
        known = self._decode(self._ids[self._before : self._shown])
        window = self._decode(self._ids[self._before :])
        if len(window) <= len(known) or window.endswith(UNFINISHED):
            return ""
        self._before, self._shown = self._shown, len(self._ids)
        new = window[len(known) :]
        self.text += new
        return new


def cut_at(text: str, stops: Sequence[str]) -> tuple[str, str]:
    """The text before the first stop string in it, and that string; the whole where none is.

    Where several begin at one place it is the shortest, for that one was complete first.
    """
    found = [(at, len(stop), stop) for stop in stops if stop and (at := text.find(stop)) >= 0]
    at, _, stop = min(found, default=(len(text), 0, ""))
    return text[:at], stop


def first_stop_ends(text: str, stops: Sequence[str]) -> int | None:
    """Where the first stop string that comes to its end does so, as text grows; None for none."""
    ends = (at + len(stop) for stop in stops if stop and (at := text.find(stop)) >= 0)
    return min(ends, default=None)
