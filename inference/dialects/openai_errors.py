"""Errors in the form of OpenAI's APIs, for chat completions and responses."""

from typing import Any

from rollcall.inference.dialects.dialect import Declined

ERRORS = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
"""Error types by status. litellm reads these before the status: agents retry an invalid request for
minutes, but stop at once for a missing key or rollout."""


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
