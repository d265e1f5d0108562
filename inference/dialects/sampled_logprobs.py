"""Log-probabilities in the form of OpenAI's APIs, for chat completions and responses.

The log holds only those of sampled tokens. A client that asks for one alternative gets the sampled
token; one that asks for more is refused, since the others are unknown. A token is named
`token_id:<id>`, as vLLM names tokens without their text.
"""

from typing import Any

from rollcall.inference.dialects.dialect import Declined
from rollcall.schemas.agent_requests import Choice


def check_top_logprobs(wanted: int | None) -> None:
    """Raise Declined for more alternatives than are known, in OpenAI's wording."""
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
    """Return the entry of each sampled token; `no_bytes` is the API's value for an unknown text."""
    told = [
        {"token": f"token_id:{token}", "logprob": logprob, "bytes": no_bytes}
        for token, logprob in zip(choice.token_ids or (), choice.logprobs or (), strict=True)
    ]
    return [one | {"top_logprobs": [one] if alternatives else []} for one in told]
