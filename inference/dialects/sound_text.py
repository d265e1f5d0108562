"""Bodies whose text UTF-8 cannot write: what is wrong in them is replaced, so that a talk goes on.

A client may cut a string within a surrogate pair, or read a file that is no text. Every later body
of its conversation holds that string again, so a refusal would end the conversation.
"""

import re

import structlog

ESCAPES = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""Every escape of a JSON string: a surrogate pair, a lone surrogate (the group), any other."""
REPLACEMENT = rb"\ufffd"

log = structlog.get_logger()


def sound(body: bytes) -> bytes:
    """Return the body with a replacement character for each lone surrogate and each wrong byte.

    How many there were and in which message the first is are logged.
    """
    wrong: list[int] = []
    if b"\\ud" in body or b"\\uD" in body:
        body = ESCAPES.sub(lambda found: _escape(found, wrong), body)
    try:
        body.decode()
    except UnicodeDecodeError as error:
        wrong.append(error.start)
        body = body.decode("utf-8", "replace").encode()
    if wrong:
        message = body[: wrong[0]].count(b'"role"')
        log.warning("text_replaced", characters=len(wrong), message=message)
    return body


def _escape(found: re.Match[bytes], wrong: list[int]) -> bytes:
    if found[1] is None:
        return found[0]
    wrong.append(found.start())
    return REPLACEMENT
