"""Validation of the token ids and log-probabilities that a server returns.

A server may return none; then the answer is untrainable. Those that it returns must be possible:
ids of the policy's vocabulary that spell the text beside them, and for each a log-probability that
a sampled token can have. Otherwise the server has other weights, another tokenizer or broken
arithmetic, and its answers are useless: the call fails with the reason.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from rollcall.inference.stream_text import UNFINISHED
from rollcall.schemas.errors import FailureCode
from rollcall.schemas.messages import Sampling
from rollcall.schemas.untrusted_text import describe_value

UNSHAPED = (1.0, 1.0, 0)
"""Temperature, top-p and top-k that leave the model's distribution as it is."""
LIKELIEST = 1e-3
"""The most by which a log-probability may exceed 0, through rounding."""
LEAST = -100.0
"""The least log-probability of a sampled token; servers write -9999 for minus infinity."""
SHOWN = 60
"""The most characters of a text that an error message quotes."""


class InvalidReport(Exception):
    """An answer that a server cannot have sampled; `code` is the error code of the failed call."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def reported_ids(
    choice: Mapping[str, Any], text: str, most: int, tokenizer: Any, size: int
) -> list[int] | None:
    """Return the sampled ids; None if the server returns none.

    Raises InvalidReport(`bad_token_ids`) unless they are a list of ids below `size`, at most `most`
    of them, that spell `text`.
    """
    ids = choice.get("token_ids")
    if ids is None:
        return None
    if not isinstance(ids, list):
        _refuse_ids(f"token_ids is {describe_value(ids)}, not a list")
    for at, each in enumerate(ids):
        if type(each) is not int or not 0 <= each < size:
            _refuse_ids(
                f"token_ids[{at}] is {describe_value(each)}, the policy has ids 0 to {size - 1}"
            )
    if len(ids) > most:
        _refuse_ids(f"token_ids has {len(ids)} ids, asked for were {most} at most")
    _require_spelled(ids, text, tokenizer)
    return ids


def reported_logprobs(
    choice: Mapping[str, Any], count: int, sampling: Sampling, *, asked: bool
) -> tuple[str, list[float]]:
    """Return why the answer is untrainable, or the log-probabilities of its `count` tokens.

    Servers return those of the unmodified model, which are those of the sampled distribution only
    if no sampling option reshaped it. Raises InvalidReport(`bad_logprobs`) for values that no
    sampled token can have, and if they are missing although they were `asked` for.
    """
    held = choice.get("logprobs")
    if held is None and not asked:
        return "no_logprobs", []
    found = held.get("token_logprobs") if isinstance(held, dict) else None
    if not isinstance(found, list):
        _refuse_logprobs(f"it tells no list logprobs.token_logprobs, found {describe_value(held)}")
    if len(found) != count:
        _refuse_logprobs(f"it tells {len(found)} of them for {count} token ids")
    shaped = (sampling.temperature, sampling.top_p, sampling.top_k) != UNSHAPED
    for at, each in enumerate(found):
        if why := _impossible(each, -math.inf if shaped else LEAST):
            _refuse_logprobs(f"token_logprobs[{at}] of {count} is {describe_value(each)}, {why}")
    return ("raw_logprobs", []) if shaped else ("", [float(each) for each in found])


def _impossible(value: object, least: float) -> str:
    """Return why no sampled token can have this log-probability; empty if one can."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "which is no number"
    if not LEAST <= value <= LIKELIEST and not math.isfinite(_float(value)):
        return "which is not finite: are its logits?"
    if value > LIKELIEST:
        return "which is above 0"
    if value < least:
        return f"which is below {LEAST:g}: such a token is never sampled"
    return ""


def _float(value: float) -> float:
    """Convert to float; infinity for an integer of JSON that is too large."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _require_spelled(ids: Sequence[int], text: str, tokenizer: Any) -> None:
    """Raise InvalidReport unless the ids spell the text.

    The text may lack the part after a stop string, special tokens, and half a character.
    """
    said, spellings = _bare(text), []
    for skip in (True, False):
        spelled = str(tokenizer.decode(list(ids), skip_special_tokens=skip))
        if said in _bare(spelled):
            return
        spellings.append(spelled)
    _refuse_ids(
        f"its {len(ids)} token ids spell {spellings[1][:SHOWN]!r}, its text is {text[:SHOWN]!r}"
    )


def _bare(text: str) -> str:
    return "".join(text.replace(UNFINISHED, "").split())


def _refuse_ids(found: str) -> NoReturn:
    msg = (
        f"told token ids that it cannot have sampled: {found}; has it the model and the tokenizer "
        "of the policy's directory? set models.openai.api to chat to evaluate it without ids"
    )
    raise InvalidReport(FailureCode.BAD_TOKEN_IDS, msg)


def _refuse_logprobs(found: str) -> NoReturn:
    msg = (
        f"told log-probabilities that no sampled tokens have: {found}; mend the server, or put "
        "logprobs = false into models.openai.body to evaluate it without them"
    )
    raise InvalidReport(FailureCode.BAD_LOGPROBS, msg)
