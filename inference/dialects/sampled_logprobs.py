"""Log-probabilities as OpenAI's APIs tell them, chat completions and responses alike.

The log holds that of each sampled token and no others. Of alternatives a client is therefore told
the sampled token, where it asks for one; where it asks for more it is refused, for it would decide
by what is not there. A token is named as vLLM names tokens without their text, `token_id:<id>`.
"""

from typing import Any

from inference.dialects.dialect import Declined
from schemas.asks import Choice


def check_top_logprobs(wanted: int | None) -> None:
    """Raises Declined for more alternatives than are known, in the words that OpenAI has for it."""
    if wanted is None or wanted <= 1:
        return
    msg = (
        f"Unsupported value: 'top_logprobs' does not support {wanted} with this model. Only 0 and "
        "1 are supported: of the alternatives to a token none but itself are known."
    )
    raise Declined(400, "unsupported_value", msg, param="top_logprobs")


def sampled_logprobs(
    choice: Choice, *, alternatives: bool, no_bytes: list[int] | None = None
) -> list[dict[str, Any]]:
    """Of each sampled token; `no_bytes` is how an API writes that the token's text is not known."""
    told = [
        {"token": f"token_id:{token}", "logprob": logprob, "bytes": no_bytes}
        for token, logprob in zip(choice.token_ids or (), choice.logprobs or (), strict=True)
    ]
    return [one | {"top_logprobs": [one] if alternatives else []} for one in told]
