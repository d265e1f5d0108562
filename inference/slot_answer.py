"""The answer of a slot that has ended: the sampled tokens, and their text and tool calls."""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

from rollcall.inference.policy_dir import Policy
from rollcall.inference.slot import Slot
from rollcall.inference.stream_text import UNFINISHED, cut_at
from rollcall.inference.tools import NONE, calls_in
from rollcall.schemas.errors import FailureCode
from rollcall.schemas.messages import CallFailed, ModelAnswered
from rollcall.schemas.packed import pack_ids, pack_logprobs

SHORT = 2
"""The most tokens of a cached text: small policies repeat short answers; decoding costs 20 us."""


class Decoder:
    """A decoder of token ids without special ones; it caches the text of short sequences."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._short = lru_cache(maxsize=4096)(self._decode)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Return the tokens whose text is left out."""
        added = self._tokenizer.added_tokens_decoder
        unnamed = {number for number, token in added.items() if token.special}
        return frozenset(unnamed.union(self._tokenizer.all_special_ids))

    def __call__(self, ids: Sequence[int]) -> str:
        return self._short(tuple(ids)) if len(ids) <= SHORT else self._decode(ids)

    def whole(self, ids: Sequence[int]) -> str:
        """Return the text including special tokens, since stop strings may contain them."""
        return self._decode(ids, skip=False)

    def _decode(self, ids: Sequence[int], *, skip: bool = True) -> str:
        return str(
            self._tokenizer.decode(
                list(ids), skip_special_tokens=skip, clean_up_tokenization_spaces=False
            )
        )

    def before(self, ids: Sequence[int], length: int) -> str:
        """Return the text without special tokens for the first `length` characters of `whole`."""
        kept = len(ids)
        while kept and len(text := self.whole(ids[:kept])) > length:
            kept -= 1
        text = self.whole(ids[:kept])
        part = "" if kept == len(ids) or ids[kept] in self.special_ids else self.whole(ids)
        return self(ids[:kept]) + part[len(text) : length]


def answer_of(
    row: Slot, policy: Policy, decode: Decoder, engine: str
) -> ModelAnswered | CallFailed:
    """Return the answer of a slot; `engine` is the name of the engine that sampled it."""
    if row.failure:
        return CallFailed(FailureCode.NOT_FINITE, row.failure, False)
    sampled = row.sampled()
    tools = policy.template.tool_format if row.call.tools else NONE
    said, stopped_by = _said(row, policy, decode, sampled)
    text, calls = calls_in(tools, said, row.call.command_id)
    return ModelAnswered(
        text=text,
        tool_calls=calls,
        added_ids=pack_ids(row.added),
        token_ids=pack_ids(sampled),
        logprobs=pack_logprobs(row.logprobs),
        versions=pack_ids(row.versions),
        finish_reason=row.finish,
        policy_id=row.call.policy_id,
        sequence=row.call.sequence,
        engine=engine,
        precision=policy.precision,
        template_digest=policy.template.digest,
        stopped_by=stopped_by,
    )


def _said(row: Slot, policy: Policy, decode: Decoder, sampled: Sequence[int]) -> tuple[str, str]:
    """Return the text, and the stop string that ended it."""
    words = sampled[:-1] if sampled and sampled[-1] in policy.end_ids else sampled
    stops = row.call.sampling.stop
    if any(stops) and not decode.special_ids.isdisjoint(words):
        before, stopped_by = cut_at(decode.whole(words), stops)
        text = decode.before(words, len(before)) if stopped_by else decode(words)
    else:
        text, stopped_by = cut_at(decode(words), stops)
    # A cut answer may end within a character.
    return text.rstrip(UNFINISHED) if row.finish == "length" else text, stopped_by
