"""HTTP requests to a server with the OpenAI API, with retries.

A server that is unreachable, overloaded or broken is retried with exponential backoff until the
call's deadline; a `Retry-After` of the server (429) is obeyed. Errors that a retry cannot fix (the
key, the model, the body) fail the call at once, in one line with its remedy. No message contains
the key, even if the server echoes it.

The package `openai` is not used: it reads an answer of any size into memory, retries by count and
not until a deadline, and takes errors under status 200 for answers. Nearly all of this module says
what an error means, which it does not do.
"""

import asyncio
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import aiohttp

from rollcall.inference.openai_api import BadAnswer
from rollcall.inference.reported_tokens import InvalidReport
from rollcall.schemas.errors import FailureCode, WorkFailed
from rollcall.schemas.untrusted_text import clean_text, describe_exception

T = TypeVar("T")

FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 8.0
MOST_BYTES = 64 << 20
"""The most bytes of one answer; a server that sends more is broken."""
SAID_CHARS = 300
"""The most characters that are quoted from a server's error."""
TOO_LONG = ("context_length_exceeded", "maximum context length", "context length")
QUOTA = "insufficient_quota"
PASSING = {408, 409, 425}
"""Statuses below 500 that are retried."""


@dataclass(frozen=True, slots=True)
class OpenAIServer:
    """The server's address, key, timeout and retries."""

    base_url: str
    """The URL as its clients take it, mostly with `/v1`; it is quoted in messages: no password."""
    model: str
    key: str = field(default="", repr=False)
    key_name: str = ""
    """The name of the environment variable that held the key, for messages."""
    timeout_s: float = 600.0
    """The timeout of one request, up to the last byte of its answer."""
    retries: int = 4
    """The number of retries after unusable answers; an unreachable server is retried until the
    call's deadline."""

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


class _Trouble(Exception):
    """A transient error; `wait_s` is the server's `Retry-After`."""

    def __init__(self, code: str, message: str, wait_s: float = 0.0, *, bad: bool = False) -> None:
        super().__init__(message)
        self.code, self.wait_s, self.bad = code, wait_s, bad


class OpenAIClient:
    """A client of one server; `left_s` returns the time until the call's deadline."""

    def __init__(self, server: OpenAIServer, session: aiohttp.ClientSession) -> None:
        self._server, self._session = server, session

    async def ask(
        self,
        path: str,
        body: Mapping[str, Any],
        read: Callable[[Mapping[str, Any]], T],
        left_s: Callable[[], float],
    ) -> T:
        """Send a request and return the answer as parsed by `read`. Raises WorkFailed."""
        tries, bad = 0, 0
        while True:
            try:
                return read(await self._once(path, body))
            except InvalidReport as error:
                words = self._clean(str(error))
                msg = f"the server at {self._server.base_url} {words}"
                raise WorkFailed(error.code, msg, retriable=False) from error
            except BadAnswer as error:
                trouble = _Trouble(
                    FailureCode.BAD_ANSWER, f"answered what says nothing: {error}", bad=True
                )
            except _Trouble as error:
                trouble = error
            tries, bad = tries + 1, bad + trouble.bad
            wait_s = trouble.wait_s or _wait_s(tries)
            if bad > self._server.retries or wait_s > left_s():
                raise self._given_up(trouble, tries)
            await asyncio.sleep(wait_s)

    async def _once(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        url = f"{self._server.base_url.rstrip('/')}/{path}"
        timeout = aiohttp.ClientTimeout(total=self._server.timeout_s)
        try:
            async with self._session.post(
                url,
                json=body,
                headers=self._server.headers(),
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                said = await _bounded(response)
        except TimeoutError as error:
            msg = f"did not answer within {self._server.timeout_s:g} s"
            raise _Trouble(FailureCode.SERVER_AWAY, msg) from error
        except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError) as error:
            msg = f"broke off its answer: {self._clean(describe_exception(error, SAID_CHARS))}"
            raise _Trouble(FailureCode.BAD_ANSWER, msg, bad=True) from error
        except (aiohttp.ClientError, OSError) as error:
            why = self._clean(describe_exception(error, SAID_CHARS))
            msg = f"cannot be reached ({why}); is it running?"
            raise _Trouble(FailureCode.SERVER_AWAY, msg) from error
        payload = _json(said)
        status = response.status
        if status != 200 or not isinstance(payload, dict) or payload.get("error"):
            self._raise_for(status, payload, said, response.headers)
        assert isinstance(payload, dict)
        return payload

    def _raise_for(
        self, status: int, payload: Any, said: bytes, headers: Mapping[str, str]
    ) -> None:
        """Raise the error for an answer that is no completion."""
        error = payload.get("error") if isinstance(payload, dict) else None
        if status == 200 and error is None:
            kind = headers.get("Content-Type", "without a content type")
            msg = (
                f"answered {kind}, which is no JSON object; is the base URL right? it mostly ends "
                "with /v1"
            )
            raise _Trouble(FailureCode.BAD_ANSWER, msg, bad=True)
        status = _status_of(error) if status == 200 else status
        words = self._clean(_words(error, payload, said))
        if status in PASSING or status >= 500:
            raise _Trouble(
                FailureCode.SERVER_AWAY, f"answered {status}: {words}", _after_s(headers)
            )
        if status == 429 and QUOTA not in words:
            raise _Trouble(FailureCode.BUSY, f"is full (429): {words}", _after_s(headers))
        raise self._refused(status, words)

    def _refused(self, status: int, words: str) -> WorkFailed:
        """Return the error that a retry cannot fix."""
        server = self._server
        held = f"the variable {server.key_name}" if server.key_name else "openai.api_key_env"
        code, remedy = FailureCode.BAD_REQUEST, "the request is not one that it takes"
        if status in (401, 403):
            code, remedy = FailureCode.UNAUTHORISED, f"put a key that it knows into {held}"
        elif status == 404:
            code = FailureCode.UNKNOWN_MODEL
            remedy = f"it has no model {server.model!r} or no such path"
        elif status == 429:
            code, remedy = FailureCode.NO_QUOTA, "its account has nothing left"
        elif any(mark in words for mark in TOO_LONG):
            code, remedy = FailureCode.TOO_LONG, "the conversation is longer than its model reads"
        elif 300 <= status < 400:
            code, remedy = FailureCode.MOVED, "name the address that it points to as the base URL"
        msg = f"the server at {server.base_url} answered {status}: {words}; {remedy}"
        return WorkFailed(code, msg, retriable=False)

    def _given_up(self, trouble: _Trouble, tries: int) -> WorkFailed:
        msg = f"the server at {self._server.base_url} {trouble} (tried {tries} times)"
        return WorkFailed(trouble.code, msg, retriable=True)

    def _clean(self, text: str) -> str:
        """Return the text with the key replaced."""
        return text.replace(self._server.key, "(the key)") if self._server.key else text


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    said = bytearray()
    async for piece in response.content.iter_any():
        said += piece
        if len(said) > MOST_BYTES:
            msg = f"answered more than {MOST_BYTES:,} bytes"
            raise _Trouble(FailureCode.BAD_ANSWER, msg, bad=True)
    return bytes(said)


def _json(said: bytes) -> Any:
    """Parse JSON; None for invalid text."""
    try:
        return json.loads(said)
    except (ValueError, RecursionError):
        return None


def _status_of(error: object) -> int:
    """Return the status of an error that came with status 200: its code if valid, else 500."""
    code = error.get("code") if isinstance(error, dict) else None
    return code if type(code) is int and 400 <= code < 600 else 500


def _words(error: object, payload: Any, said: bytes) -> str:
    """Return the server's description of its error, mainly from `code` and `message`."""
    if isinstance(error, dict):
        parts = [error.get("code"), error.get("type"), error.get("message")]
        words = ", ".join(str(part) for part in parts if part)
    elif isinstance(payload, dict):
        words = str(error or payload.get("message") or payload.get("detail") or payload)
    else:
        words = said[: 4 * SAID_CHARS].decode(errors="replace")
    return clean_text(" ".join(words.split()), SAID_CHARS) or "nothing"


def _after_s(headers: Mapping[str, str]) -> float:
    """Return the wait from `Retry-After`, in seconds or as a date; 0 if there is none."""
    value = headers.get("Retry-After", "")
    try:
        return min(max(0.0, float(value)), 1e9)
    except ValueError:
        pass
    try:
        at = parsedate_to_datetime(value)
    except (ValueError, TypeError):
        return 0.0
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())


def _wait_s(tries: int) -> float:
    """Return the backoff: doubled each time up to `LONGEST_WAIT_S`, half of it random, so that
    clients that were refused together do not retry together."""
    longest: float = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(tries - 1, 10))
    return longest * (0.5 + 0.5 * random.random())
