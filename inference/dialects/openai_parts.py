"""The parts that OpenAI's APIs have in common: errors, and log-probabilities of sampled tokens."""

from typing import Any

from rollcall.inference.dialects.dialect import Declined
from rollcall.schemas.agent_requests import Choice

ERRORS = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
"""Error types by status. litellm reads these before the status: by it, agents retry an invalid
request for minutes, but stop at once if the key or the rollout does not exist."""


def error_value(declined: Declined) -> dict[str, Any]:
    """Return an error in the form of OpenAI's APIs."""
    kind = "server_error" if declined.status >= 500 else "invalid_request_error"
    return {
        "error": {
            "message": str(declined),
            "type": ERRORS.get(declined.status, kind),
            "param": declined.param,
            "code": declined.code,
        }
    }


def unsupported(param: str, remedy: str) -> Declined:
    """Return the refusal of a parameter, in the wording of OpenAI's models."""
    msg = f"Unsupported parameter: '{param}' is not supported with this model. {remedy}"
    return Declined(400, "unsupported_parameter", msg, param=param)


def check_top_logprobs(wanted: int | None) -> None:
    """Raise Declined, in OpenAI's wording, for more alternatives than the log holds."""
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
    """Return the entry of each sampled token; `no_bytes` is the API's value for an unknown text.

    The log holds only the log-probabilities of sampled tokens, so the only alternative to give is
    the token itself. It is named `token_id:<id>`, as vLLM names tokens without their text.
    """
    entries = [
        {"token": f"token_id:{token}", "logprob": logprob, "bytes": no_bytes}
        for token, logprob in zip(choice.token_ids or (), choice.logprobs or (), strict=True)
    ]
    return [one | {"top_logprobs": [one] if alternatives else []} for one in entries]
