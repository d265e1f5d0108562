"""The text of sampled tokens as they come; a character may span several tokens."""

from collections.abc import Callable, Sequence
from typing import Protocol

UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class TokenDecoder(Protocol):
    """A decoder of tokens for stop strings."""

    def whole(self, ids: Sequence[int]) -> str:
        """Return the text of tokens including special ones."""
        ...


class IncrementalText:
    """The text of tokens that come one by one; a character appears with its last token.

    `text` only grows. Each time, only the last few tokens are decoded, with their predecessors,
    since some tokenizers write a token differently at the beginning.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self.text = ""
        self._decode = decode
        self._ids: list[int] = []
        self._before = 0
        self._shown = 0

    def push(self, token: int) -> str:
        """Add one token; return the text that it completes."""
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
    """Return the text before its first stop string, and that string; all of it if there is none.

    If several begin at one place, the shortest counts, since it was complete first.
    """
    found = [(at, len(stop), stop) for stop in stops if stop and (at := text.find(stop)) >= 0]
    at, _, stop = min(found, default=(len(text), 0, ""))
    return text[:at], stop


def first_stop_ends(text: str, stops: Sequence[str]) -> int | None:
    """Return the end of the stop string that is complete first as text grows; None for none."""
    ends = (at + len(stop) for stop in stops if stop and (at := text.find(stop)) >= 0)
    return min(ends, default=None)
