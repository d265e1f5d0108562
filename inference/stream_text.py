"""Text of sampled tokens, as far as it is certain: a character may span several tokens."""

from collections.abc import Callable, Sequence

UNFINISHED = "\N{REPLACEMENT CHARACTER}"


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


def cut_at(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop string in it; the whole when there is none."""
    places = [at for at in (text.find(stop) for stop in stops if stop) if at >= 0]
    return text[: min(places)] if places else text
