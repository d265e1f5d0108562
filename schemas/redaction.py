"""Removal of secrets from all output: errors, logs, tracebacks, JSON.

There are two methods, since neither finds every secret. A URL's user part, and parameters named
like secrets, are found by their form. The values of settings named like secrets, and the passwords
in URLs of stores and clients, are registered by `add_secret` and found wherever a library quotes
them.
"""

import json
import re
from collections.abc import Mapping
from urllib.parse import quote, quote_plus, unquote, urlsplit

SHOWN = "***"
SHORTEST = 6
"""A shorter secret would match ordinary words; in a URL it is still found by its form."""
SECRET = "passw|passphrase|secret|token|credential|signature|jaas|api[._-]?key|access[._-]?key"
NAMES = re.compile(rf"(?:{SECRET}|user\.info|key\.pem|oauthbearer\.config)", re.IGNORECASE)
"""Matches names of settings that hold secrets; the path of a key file is not secret."""
USER = re.compile(r"(?<=://)[^\s/?#'\"<>@]*(?:@[^\s/?#'\"<>@]*)*@")
PARAMETER = re.compile(rf"([?&;](?:[\w.-]*(?:{SECRET})[\w.-]*|sig)=)[^&;\s'\"<>]+", re.IGNORECASE)

_known: dict[str, None] = {}
"""The longest first, so that no part of a secret is left."""


def add_secret(*secrets: str) -> None:
    """Register secrets, in every form in which a URL or JSON may quote them."""
    spelt = {each for text in secrets for each in (text, unquote(text), quote(text, ""))}
    spelt |= {quote_plus(text) for text in secrets} | {repr(text)[1:-1] for text in secrets}
    spelt |= {json.dumps(text)[1:-1] for text in secrets}
    new = {each for each in spelt if len(each) >= SHORTEST and each not in _known}
    if new:
        kept = sorted({*_known, *new}, key=len, reverse=True)
        _known.clear()
        _known.update(dict.fromkeys(kept))


def add_secrets_of_url(url: str) -> None:
    """Register the secrets of a URL: its password, or its whole user part, and its parameters."""
    rest = url.partition("://")[2]
    if not rest:
        return
    user, at, _ = rest.rpartition("@")
    if at and "/" not in user.partition(":")[0]:
        name, colon, password = user.partition(":")
        secret = password if colon else name
        # Some libraries split at the first @ and quote only a part.
        add_secret(secret, *secret.split("@"))
    try:
        query = urlsplit(url).query
    except ValueError:
        return  # not a URL, so nothing can be opened with it
    for pair in re.split("[&;]", query):
        name, _, value = pair.partition("=")
        if NAMES.search(name) or name == "sig":
            add_secret(value)


def add_secrets_of_settings(values: Mapping[str, str]) -> None:
    """Register the secrets of a client's settings, found by their names."""
    for name, value in values.items():
        if NAMES.search(name):
            add_secret(value, *(part for part in value.split(":", 1)[1:] if "user.info" in name))
        else:
            add_secrets_of_url(value)


def redact(text: str) -> str:
    """Replace the secrets in a text."""
    if "://" in text or "=" in text:
        text = PARAMETER.sub(rf"\1{SHOWN}", USER.sub(f"{SHOWN}@", text))
    for secret in _known:
        if secret in text:
            text = text.replace(secret, SHOWN)
    return text
