"""Errors as OpenAI's APIs tell them, chat completions and responses alike."""

from typing import Any

from inference.dialects.dialect import Declined

ERRORS = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
"""litellm goes by these words before it looks at the status: whatever it takes for an invalid
request is tried again for minutes by agents that would stop at once without a key or a rollout."""


def error_value(declined: Declined) -> dict[str, Any]:
    """An error as OpenAI's APIs tell it."""
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
    """The refusal of a parameter, in the words in which OpenAI's models refuse one."""
    msg = f"Unsupported parameter: '{param}' is not supported with this model. {remedy}"
    return Declined(400, "unsupported_parameter", msg, param=param)
