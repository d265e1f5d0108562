"""One call in the batch: its tokens, how many of them were fed, and what was sampled."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from rollcall.inference.policy_dir import Policy
from rollcall.inference.stream_text import IncrementalText, TokenDecoder
from rollcall.schemas.errors import FailureCode, WorkFailed
from rollcall.schemas.messages import CallFailed, ModelCall, Sampling
from rollcall.schemas.packed import ids_of
from rollcall.schemas.untrusted_text import describe_exception


@dataclass(slots=True)
class Slot:
    """A row of the batch."""

    call: ModelCall
    tokens: list[int]
    """The prefix, added and sampled tokens."""
    added: list[int]
    limit: int
    """The most tokens to sample."""
    seed: int
    spoken: IncrementalText | None
    shares: bytes = b""
    """The packed prompt without its last token, if siblings wait for it; else empty."""
    fed: int = 0
    """The number of tokens that have keys and values under the present weights."""
    finish: str = ""
    failure: str = ""
    """The reason why it ended without an answer; empty if there is one."""
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def width(self) -> int:
        """Return the most tokens that it can reach."""
        return len(self.tokens) + self.limit

    def sampled(self) -> list[int]:
        return self.tokens[len(self.tokens) - len(self.logprobs) :]

    def add(self, token: int, logprob: float, version: int, end_ids: Collection[int]) -> None:
        """Append a sampled token and check whether it ends the answer.

        A log-probability that is not finite comes from logits that are NaN, or of which none is
        finite: then no token was sampled, and the call fails.
        """
        if not math.isfinite(logprob):
            self.finish = "failed"
            self.failure = (
                f"the network's logits are not finite after {len(self.tokens)} tokens, "
                f"{len(self.logprobs)} of them sampled, under version {version}; are its weights "
                "sound, and does its precision hold such values?"
            )
            return
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if token in end_ids or self._says_stop(token):
            self.finish = "stop"
        elif len(self.logprobs) >= self.limit:
            self.finish = "length"

    def _says_stop(self, token: int) -> bool:
        if self.spoken is None:
            return False
        before = len(self.spoken.text)
        self.spoken.push(token)
        return any(
            stop and self.spoken.text.find(stop, max(0, before - len(stop) + 1)) >= 0
            for stop in self.call.sampling.stop
        )


def slot_or_failure(call: ModelCall, policy: Policy, decode: TokenDecoder) -> Slot | CallFailed:
    """Return a slot for the call, or the failure for one that cannot be served."""
    try:
        return slot_of(call, policy, decode)
    except WorkFailed as error:
        return CallFailed(error.code, str(error), error.retriable)
    except Exception as error:  # a chat template is foreign code, and so are its tools
        return CallFailed(FailureCode.NOT_RENDERABLE, describe_exception(error), False)


def slot_of(call: ModelCall, policy: Policy, decode: TokenDecoder) -> Slot:
    """Render the new messages; raises WorkFailed for a call that cannot be served.

    If no token is to be sampled, the slot has ended at its start, and its length is not checked.
    """
    if call.prefix_ids is None and call.prefix_length:
        msg = f"the prefix of {call.prefix_length} tokens is not held here; send it whole"
        raise WorkFailed(FailureCode.PREFIX_NEEDED, msg, retriable=True)
    _check_sampling(call.sampling)
    prefix = ids_of(call.prefix_ids or b"").tolist()
    _check_ids(prefix, call.policy_id, policy.model.config.vocab_size)
    added = policy.template.render(
        call.messages,
        first=not prefix,
        tools=call.tools,
        ended=bool(prefix) and prefix[-1] in policy.template.end_ids,
    )
    tokens = prefix + added
    counted = not call.sampling.max_tokens
    room = policy.context - len(tokens)
    if room < 1 and not counted:
        msg = (
            f"this model's maximum context length is {policy.context} tokens. However, "
            f"your messages resulted in {len(tokens)} tokens."
        )
        raise WorkFailed(FailureCode.TOO_LONG, msg, retriable=False)
    if not tokens:
        msg = "neither prefix nor messages gave a token to begin with"
        raise WorkFailed(FailureCode.NOT_RENDERABLE, msg, retriable=False)
    return Slot(
        call,
        tokens,
        added,
        limit=min(call.sampling.max_tokens, room),
        seed=call.seed & 0xFFFFFFFFFFFFFFFF,
        spoken=IncrementalText(decode.whole) if any(call.sampling.stop) else None,
        finish="length" * counted,
    )


def _check_ids(prefix: Sequence[int], policy_id: str, size: int) -> None:
    if prefix and not 0 <= min(prefix) <= max(prefix) < size:
        msg = (
            f"the prefix holds tokens from {min(prefix)} to {max(prefix)}, but policy "
            f"{policy_id!r} has tokens 0 to {size - 1}; was it sampled by another one?"
        )
        raise WorkFailed(FailureCode.BAD_PREFIX, msg, retriable=False)


def _check_sampling(sampling: Sampling) -> None:
    if (
        sampling.temperature >= 0
        and np.isfinite(sampling.temperature)
        and 0 < sampling.top_p <= 1
        and sampling.top_k >= 0
        and sampling.max_tokens >= 0
    ):
        return
    msg = f"{sampling}; needed are temperature >= 0, 0 < top_p <= 1, top_k >= 0, max_tokens >= 0"
    raise WorkFailed(FailureCode.BAD_SAMPLING, msg, retriable=False)
