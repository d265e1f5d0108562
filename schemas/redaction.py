"""Secrets of settings, kept out of all that is shown: errors, logs, tracebacks, JSON.

Two nets, for neither catches everything. What stands in a URL's user part, or behind a parameter
that is named after a secret, is found by its form. What settings hold under the name of a secret,
and every password of a URL that a store or a client is made of, is known by `add_secret`, and is
found wherever a library quotes it.
"""

import json
import re
from collections.abc import Mapping
from urllib.parse import quote, quote_plus, unquote, urlsplit

SHOWN = "***"
SHORTEST = 6
"""A shorter secret would be found in every second word; in a URL its form tells it."""
SECRET = "passw|passphrase|secret|token|credential|signature|jaas|api[._-]?key|access[._-]?key"
NAMES = re.compile(rf"(?:{SECRET}|user\.info|key\.pem|oauthbearer\.config)", re.IGNORECASE)
"""In the names of settings that hold secrets; the path of a key file is none."""
USER = re.compile(r"(?<=://)[^\s/?#'\"<>@]*(?:@[^\s/?#'\"<>@]*)*@")
PARAMETER = re.compile(rf"([?&;](?:[\w.-]*(?:{SECRET})[\w.-]*|sig)=)[^&;\s'\"<>]+", re.IGNORECASE)

_known: dict[str, None] = {}
"""The longest first, so that none is left in part."""


def add_secret(*secrets: str) -> None:
    """Never show these again, in whatever spelling a URL has for them."""
    spelt = {each for text in secrets for each in (text, unquote(text), quote(text, ""))}
    spelt |= {quote_plus(text) for text in secrets} | {repr(text)[1:-1] for text in secrets}
    spelt |= {json.dumps(text)[1:-1] for text in secrets}
    new = {each for each in spelt if len(each) >= SHORTEST and each not in _known}
    if new:
        kept = sorted({*_known, *new}, key=len, reverse=True)
        _known.clear()
        _known.update(dict.fromkeys(kept))


def add_secrets_of_url(url: str) -> None:
    """Know the secrets of a URL: its password, or all of its user part, and its parameters."""
    rest = url.partition("://")[2]
    if not rest:
        return
    user, at, _ = rest.rpartition("@")
    if at and "/" not in user.partition(":")[0]:
        name, colon, password = user.partition(":")
        secret = password if colon else name
        add_secret(
            secret, *secret.split("@")
        )  # whoever takes the first @ for the last quotes a part
    try:
        query = urlsplit(url).query
    except ValueError:
        return  # of no form: nothing can be opened there
    for pair in re.split("[&;]", query):
        name, _, value = pair.partition("=")
        if NAMES.search(name) or name == "sig":
            add_secret(value)


def add_secrets_of_settings(values: Mapping[str, str]) -> None:
    """Know the secrets of a client's settings, by the names that they have."""
    for name, value in values.items():
        if NAMES.search(name):
            add_secret(value, *(part for part in value.split(":", 1)[1:] if "user.info" in name))
        else:
            add_secrets_of_url(value)


def redact(text: str) -> str:
    """The text as it may be shown."""
    if "://" in text or "=" in text:
        text = PARAMETER.sub(rf"\1{SHOWN}", USER.sub(f"{SHOWN}@", text))
    for secret in _known:
        if secret in text:
            text = text.replace(secret, SHOWN)
    return text
