"""Repair of bodies whose text is no valid Unicode, so that the conversation can continue.

A client may cut a string within a surrogate pair, or read a file that is no text. Every later body
of its conversation repeats that string, so a refusal would end the conversation.
"""

import re

import structlog

SURROGATES = re.compile(
    rb"(?<!\\)(\\++)u[dD](?:[89abAB][0-9a-fA-F]{2}(\\u[dD][c-fC-F][0-9a-fA-F]{2})?"
    rb"|[c-fC-F][0-9a-fA-F]{2})"
)
"""A surrogate after all the backslashes before it (an even number are none before `u`), with the
second half of its pair. Only these matches are examined one by one."""
REPLACEMENT = rb"\ufffd"

log = structlog.get_logger()


def replace_surrogates(body: bytes) -> bytes:
    """Return the body with a replacement character for each lone surrogate and each wrong byte.

    The count and the message of the first one are logged.
    """
    wrong: list[int] = []
    if b"\\ud" in body or b"\\uD" in body:
        body = SURROGATES.sub(lambda found: _replaced(found, wrong), body)
    try:
        body.decode()
    except UnicodeDecodeError as error:
        wrong.append(error.start)
        body = body.decode("utf-8", "replace").encode()
    if wrong:
        message = body[: wrong[0]].count(b'"role"')
        log.warning("text_replaced", characters=len(wrong), message=message)
    return body


def _replaced(found: re.Match[bytes], wrong: list[int]) -> bytes:
    backslashes, second = found[1], found[2]
    escaped = len(backslashes) % 2 == 1
    if escaped == (second is not None):  # a pair, or no escape
        return found[0]
    wrong.append(found.start())
    if second is not None:  # the first half is text, so only the second is an escape
        return found[0].removesuffix(second) + REPLACEMENT
    return backslashes[:-1] + REPLACEMENT
