"""Policies without weights: functions of the whole conversation, for `worker models --script`."""

from hashlib import blake2b

WORDS = ["L", "D", "R", "U", "no"]


def word(conversation: str) -> str:
    """A word that the conversation decides."""
    return WORDS[blake2b(conversation.encode(), digest_size=1).digest()[0] % len(WORDS)]


def silent(conversation: str) -> None:
    """Says nothing at all."""


def raising(conversation: str) -> str:
    msg = f"out of words\ud800 after {len(conversation)}"
    raise ValueError(msg)


def leaving(conversation: str) -> str:
    raise SystemExit(3)


async def later(conversation: str) -> str:
    return conversation


def nothing_asked() -> str:
    return ""


NUMBER = 5
