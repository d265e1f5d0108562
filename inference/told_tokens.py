"""Tokens and log-probabilities that a server told: read, or refused by name where they lie.

A server may tell none of them; then the answer is untrainable. What it tells has to be possible:
ids of the policy's vocabulary that spell the text beside them, and one log-probability for each,
as a sampled token has. A server that tells anything else has other weights, another tokenizer or
broken arithmetic, and no answer of it is worth anything: the call fails with the reason.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from inference.stream_text import UNFINISHED
from schemas.foreign_text import shown
from schemas.messages import Sampling

UNSHAPED = (1.0, 1.0, 0)
"""Temperature, top-p and top-k that leave the model's distribution as it is."""
LIKELIEST = 1e-3
"""A log-probability may be so much above 0, by rounding."""
LEAST = -100.0
"""Nothing less likely is ever sampled; servers write -9999 for minus infinity, JSON has none."""
SHOWN = 60
"""Characters of a text in a message."""


class Untrue(Exception):
    """What a server cannot have sampled; `code` is that of the call, which fails."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def told_ids(
    choice: Mapping[str, Any], text: str, most: int, tokenizer: Any, size: int
) -> list[int] | None:
    """Return the ids that were sampled; None where the server tells none.

    Raises Untrue(`bad_token_ids`) for what is no list of ids below `size`, for more of them
    than `most`, and for ids that do not spell `text`.
    """
    ids = choice.get("token_ids")
    if ids is None:
        return None
    if not isinstance(ids, list):
        _refuse_ids(f"token_ids is {shown(ids)}, not a list")
    for at, each in enumerate(ids):
        if type(each) is not int or not 0 <= each < size:
            _refuse_ids(f"token_ids[{at}] is {shown(each)}, the policy has ids 0 to {size - 1}")
    if len(ids) > most:
        _refuse_ids(f"token_ids has {len(ids)} ids, asked for were {most} at most")
    _require_spelled(ids, text, tokenizer)
    return ids


def told_logprobs(
    choice: Mapping[str, Any], count: int, sampling: Sampling, *, asked: bool
) -> tuple[str, list[float]]:
    """Return why the answer is untrainable, or the log-probabilities of its `count` tokens.

    Servers give those of the model as it is, which are of the distribution that was sampled from
    where nothing reshaped it. Raises Untrue(`bad_logprobs`) for those that no sampled token
    has, and where none come although they were `asked` for.
    """
    held = choice.get("logprobs")
    if held is None and not asked:
        return "no_logprobs", []
    found = held.get("token_logprobs") if isinstance(held, dict) else None
    if not isinstance(found, list):
        _refuse_logprobs(f"it tells no list logprobs.token_logprobs, found {shown(held)}")
    if len(found) != count:
        _refuse_logprobs(f"it tells {len(found)} of them for {count} token ids")
    shaped = (sampling.temperature, sampling.top_p, sampling.top_k) != UNSHAPED
    for at, each in enumerate(found):
        if why := _impossible(each, -math.inf if shaped else LEAST):
            _refuse_logprobs(f"token_logprobs[{at}] of {count} is {shown(each)}, {why}")
    return ("raw_logprobs", []) if shaped else ("", [float(each) for each in found])


def _impossible(value: object, least: float) -> str:
    """Why no sampled token has this log-probability; empty where one may."""
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
    """JSON has whole numbers that no float holds."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _require_spelled(ids: Sequence[int], text: str, tokenizer: Any) -> None:
    """A text may lack what a stop string cut off, its special tokens, and half a character."""
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
    raise Untrue("bad_token_ids", msg)


def _refuse_logprobs(found: str) -> NoReturn:
    msg = (
        f"told log-probabilities that no sampled tokens have: {found}; mend the server, or put "
        "logprobs = false into models.openai.body to evaluate it without them"
    )
    raise Untrue("bad_logprobs", msg)
