"""Foreign text for a chat template: the spelling of a control token in it stays plain text.

A chat template hands out one text, in which the spelling of a control token in a message cannot be
told from one that the template wrote. So such spellings are replaced by placeholders before the
template is rendered, and each placeholder is encoded afterwards as the plain text that it stands
for. What lies between two placeholders is encoded by itself, as it would be between two control
tokens.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

MARK = "zq7xk"
"""Begins and ends a placeholder; it is made longer until no foreign text contains it."""


class Shield:
    """Replaces spellings of a tokenizer's special tokens, and encodes them as plain text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", {}).values()
        spellings = {token.content for token in added if token.special}
        spellings |= set(getattr(tokenizer, "all_special_tokens", ()))
        longest_first = sorted(filter(None, spellings), key=lambda each: (-len(each), each))
        self._spellings = longest_first
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def mark_for(self, values: Sequence[Any]) -> str:
        """A mark for texts that spell a special token; empty where none of them does."""
        texts = [text for value in values for text in _texts(value)]
        if not any(map(self._pattern.search, texts)):
            return ""
        mark = MARK
        while any(mark in text for text in texts):
            mark += "q"
        return mark

    def shielded(self, value: Any, mark: str) -> Any:
        """The value, of what JSON knows, with placeholders in all of its texts."""
        number = {spelling: n for n, spelling in enumerate(self._spellings)}
        return _mapped(
            value,
            lambda text: self._pattern.sub(lambda m: f"{mark}-{number[m[0]]}-{mark}", text),
        )

    def encoded(self, text: str, mark: str) -> list[int]:
        """Tokens of a rendered text: control tokens of the template, plain text of all others."""
        encode = self._tokenizer.encode
        if not mark:
            return list(encode(text, add_special_tokens=False)) if text else []
        ids: list[int] = []
        for at, piece in enumerate(re.split(f"{mark}-(\\d+)-{mark}", text)):
            if at % 2:
                plain = self._spellings[int(piece)]
                ids += encode(plain, add_special_tokens=False, split_special_tokens=True)
            elif piece:
                ids += encode(piece, add_special_tokens=False)
        return ids


def _texts(value: Any) -> Iterator[str]:
    """All texts in a value of what JSON knows, the keys of objects too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """A value of what JSON knows with every text in it changed, the keys of objects too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _mapped(each, change) for key, each in value.items()}
    if isinstance(value, list):
        return [_mapped(each, change) for each in value]
    return value
