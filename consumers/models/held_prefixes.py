"""Token sequences that calls continue by a digest, so that they are not sent whole again."""

from dataclasses import replace

from rollcall.schemas.answer_cache import AnswerCache
from rollcall.schemas.ids import LONG_PREFIX, prefix_digest
from rollcall.schemas.messages import CallFailed, ModelAnswered, ModelCall

PREFIX_BYTES = 256 << 20
"""Memory for the sequences that were answered last: 2,000 of 32,768 tokens."""


class HeldPrefixes:
    """The sequences that one server holds."""

    def __init__(self) -> None:
        self._held: AnswerCache[bytes] = AnswerCache(PREFIX_BYTES)

    def __len__(self) -> int:
        return len(self._held)

    def filled(self, call: ModelCall) -> ModelCall | CallFailed:
        """Return the call with the tokens that it names, or a failure if they are not held here."""
        if call.prefix_ids is not None or not call.prefix_length:
            return call
        ids = self._held.get(call.prefix_digest)
        if ids is None or len(ids) != 4 * call.prefix_length:
            msg = f"a prefix of {call.prefix_length} tokens is not held here; send it whole"
            return CallFailed("prefix_needed", msg, True)
        return replace(call, prefix_ids=ids)

    def keep(self, call: ModelCall, body: ModelAnswered) -> None:
        """Keep an extended sequence, in place of its prefix.

        Short ones are never named, and a call without sampled tokens extends nothing.
        """
        before, added, sampled = call.prefix_ids or b"", body.added_ids, body.token_ids
        long = len(before) + len(added) + len(sampled) >= 4 * LONG_PREFIX
        if not long or not call.sampling.max_tokens:
            return
        ids = before + added + sampled
        self._held.drop(call.prefix_digest or prefix_digest(before))
        self._held.keep(prefix_digest(ids), ids)
