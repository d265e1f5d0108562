"""Keep control tokens that are spelled out in messages as plain text, under every template.

Control tokens are all tokens added to a tokenizer's own vocabulary, special or not (`</think>` and
`<tool_call>` mostly are not), except white space; and the marks of a template. In a rendered text,
their spelling in a message looks the same as one that the template wrote. So such spellings are
replaced by placeholders before a template is rendered, and each placeholder is encoded afterwards
as the plain text that it stands for. Text between two placeholders is encoded separately, as it
would be between two control tokens.

The policy's own answers may contain control tokens that are not special, since answers are returned
with their spelling; there they stay control tokens. Special ones are never part of an answer's
text.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any

from tokenizers import Tokenizer

from rollcall.schemas.errors import FailureCode, WorkFailed

MARK = "zq7xk"
"""The start and end of a placeholder; it is made longer until no message contains it."""

Encode = Callable[[str], Sequence[int]]


class Shield:
    """The control tokens of a tokenizer, and the encoding of each as plain text.

    `marks` are a template's marks: spellings, and the token of each.
    """

    def __init__(self, tokenizer: Any, marks: Mapping[str, int] = MappingProxyType({})) -> None:
        self._tokenizer = tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", {})
        named = getattr(tokenizer, "all_special_tokens", ())
        special = {spelling: tokenizer.convert_tokens_to_ids(spelling) for spelling in named}
        special |= {token.content: each for each, token in added.items() if token.special}
        others = {token.content: each for each, token in added.items() if token.content.strip()}
        every = {**special, **others, **marks}
        self._ids = {True: frozenset(special.values()), False: frozenset(every.values())}
        """The ids to look for; the key is True for a text of the policy itself."""
        self._patterns = {True: _any_of(special), False: _any_of(every)}
        tokens = added.values()
        folded = any(getattr(token, "normalized", False) for token in tokens)
        self._folds = folded and self._backend is not None and self._backend.normalizer is not None
        """True if other spellings become control tokens too, such as those in capitals."""
        self.spans = lru_cache(maxsize=4096)(self._spans)
        self._plain = lru_cache(maxsize=4096)(self._as_plain)

    def guard(self, values: Sequence[Any]) -> "TextGuard":
        """Return a guard that hides control tokens in texts that are rendered together."""
        texts = [text for value in values for text in _texts(value)]
        mark = MARK
        while any(mark in text for text in texts):
            mark += "q"
        return TextGuard(self, mark)

    def plain(self, text: str) -> tuple[int, ...]:
        """Encode the spelling of a control token as text.

        Raises WorkFailed(`not_renderable`) where a vocabulary has no other tokens for it.
        """
        return self._plain(text)

    @cached_property
    def _backend(self) -> Any:
        return getattr(self._tokenizer, "backend_tokenizer", None)

    @cached_property
    def _bare(self) -> Any:
        """Return the tokenizer without its control tokens; None if it is no Rust tokenizer."""
        if self._backend is None:
            return None
        made = json.loads(self._backend.to_str())
        made["added_tokens"] = [
            each for each in made["added_tokens"] if each["id"] not in self._ids[False]
        ]
        return Tokenizer.from_str(json.dumps(made))

    def _spans(self, text: str, own: bool) -> tuple[tuple[int, int], ...]:
        """Return the spans of control tokens that are spelled out in a text."""
        found = [match.span() for match in self._patterns[own].finditer(text)]
        if self._folds and text:
            told = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            pairs = zip(told["input_ids"], told["offset_mapping"], strict=True)
            unknown = self._tokenizer.unk_token_id
            found += [tuple(at) for each, at in pairs if each in self._ids[own] - {unknown}]
        return tuple(_merged(found))

    def _as_plain(self, text: str) -> tuple[int, ...]:
        unknown = {self._tokenizer.unk_token_id}
        lossy: tuple[int, ...] | None = None
        for pieces in _cuts(text):
            ids = [each for piece in pieces for each in self._text_ids(piece) or [-1]]
            control = self._ids[False].intersection(ids)
            if not control and -1 not in ids:
                return tuple(ids)
            if control == unknown and -1 not in ids:
                lossy = lossy or tuple(ids)
        if lossy is not None:
            return lossy
        msg = (
            f"a message spells the control token {text!r}, and the tokenizer has no other tokens "
            "for that text; take it out of the message, or give the policy an unknown token (<unk> "
            "among tokens of [policy])"
        )
        raise WorkFailed(FailureCode.NOT_RENDERABLE, msg, retriable=False)

    def _text_ids(self, piece: str) -> list[int]:
        """Return the tokens of a piece without control tokens; empty if that is impossible."""
        try:
            ids = self._tokenizer.encode(piece, add_special_tokens=False, split_special_tokens=True)
            if self._bare is not None and not self._ids[False].isdisjoint(ids):
                ids = self._bare.encode(piece, add_special_tokens=False).ids
        except Exception:  # the Rust tokenizers raise nothing narrower for text without tokens
            return []
        return list(ids)


class TextGuard:
    """A guard that hides control tokens in the texts of one rendering, and encodes the result."""

    def __init__(self, shield: Shield, mark: str) -> None:
        self._shield, self._mark = shield, mark
        self._hidden: list[str] = []

    def hide(self, value: Any, *, own: bool = False) -> Any:
        """Return the JSON value with placeholders in all of its texts.

        `own`: the value is the policy's own answer.
        """
        return _mapped(value, lambda text: self._with_placeholders(text, own))

    def encode(self, text: str, encode: Encode) -> list[int]:
        """Return the tokens of a rendered text; `encode` encodes all but the placeholders."""
        if not self._hidden:
            return list(encode(text)) if text else []
        ids: list[int] = []
        for at, piece in enumerate(re.split(f"{self._mark}-(\\d+)-{self._mark}", text)):
            if at % 2:
                ids += self._shield.plain(self._hidden[int(piece)])
            elif piece:
                ids += encode(piece)
        return ids

    def _with_placeholders(self, text: str, own: bool) -> str:
        spans = self._shield.spans(text, own)
        for begin, end in reversed(spans):
            placeholder = f"{self._mark}-{len(self._hidden)}-{self._mark}"
            self._hidden.append(text[begin:end])
            text = text[:begin] + placeholder + text[end:]
        return text


def _any_of(spellings: Collection[str]) -> re.Pattern[str]:
    longest_first = sorted(filter(None, spellings), key=lambda each: (-len(each), each))
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _merged(spans: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    """Yield the spans in order, overlapping ones merged."""
    last: tuple[int, int] | None = None
    for begin, end in sorted(spans):
        if last is not None and begin < last[1]:
            last = last[0], max(last[1], end)
            continue
        if last is not None:
            yield last
        last = begin, end
    if last is not None:
        yield last


def _cuts(text: str) -> Iterator[list[str]]:
    """Yield ways to split a text, those with the fewest parts first."""
    yield [text]
    for at in range(1, len(text)):
        yield [text[:at], text[at:]]
    yield list(text)


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in a JSON value, including the keys of objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with every text in it changed, including the keys of objects."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _mapped(each, change) for key, each in value.items()}
    if isinstance(value, list):
        return [_mapped(each, change) for each in value]
    return value
