"""Any OpenEnv server's environment with text actions, over OpenEnv's own client.

Each session is a websocket of its own. An action that the server rejects as invalid costs a
penalty and nothing else: the last observation is shown again after a prefix.
"""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import orjson
from openenv.core.generic_client import GenericEnvClient
from websockets.exceptions import ConnectionClosed, InvalidStatus

from rollcall.sandbox.environment import Observation
from rollcall.sandbox.user_code import convert_errors
from rollcall.schemas.errors import FailureCode, WorkFailed

TEXT = "{text}"
"""The placeholder for the text of an action in a template."""
CODE = re.compile(r"\(code: (\w+)\)$")
"""The end of the client's error messages, which alone holds the server's error code."""


class OpenEnvText:
    """One session on an OpenEnv server at `url`.

    `action` converts a text into an object: a template such as `{"message": "{text}"}`; or, with
    `actions`, one object for each known word. Without either the text itself is JSON.
    `observation` is a template over the fields of an observation, else all of them are shown as
    JSON. `reset` is sent to the server beside the seed. `replayable` may be true only if the
    server is deterministic in the seed and actions.
    """

    def __init__(
        self,
        url: str,
        *,
        action: Mapping[str, Any] | None = None,
        actions: Mapping[str, Mapping[str, Any]] | None = None,
        observation: str = "",
        reset: Mapping[str, Any] | None = None,
        invalid_penalty: float = 0.0,
        invalid_prefix: str = "no ",
        replayable: bool = False,
        connect_timeout_s: float = 10.0,
    ) -> None:
        if action is not None and actions is not None:
            msg = "an action is a template or one of several words: leave out 'action' or 'actions'"
            raise WorkFailed(FailureCode.BAD_CONFIG, msg, retriable=False)
        if not re.match(r"(http|ws)s?://[^/]", url):
            msg = f"url {url!r} is not of the form http://HOST:PORT"
            raise WorkFailed(FailureCode.BAD_CONFIG, msg, retriable=False)
        self.replayable = replayable
        self._url = url
        self._action = action
        self._actions = actions
        self._observation = observation
        self._reset = dict(reset or {})
        self._invalid_penalty = invalid_penalty
        self._invalid_prefix = invalid_prefix
        self._text = ""
        # No timeout of its own: the step's deadline cancels a call that takes too long.
        self._client = GenericEnvClient(
            url, connect_timeout_s, message_timeout_s=None, mode="simulation"
        )

    async def open(self, seed: int) -> Observation:
        async with self._asked():
            await self._client.connect()
            result = await self._client.reset(**(self._reset | {"seed": seed}))
            state = await self._client.state()
        return self._shown(result, {"state": state})

    async def step(self, action: str) -> Observation:
        meant = self._read(action)
        if meant is None:
            return self._invalid()
        try:
            async with self._asked():
                result = await self._client.step(meant)
                state = await self._client.state() if result.done else None
        except WorkFailed as error:
            if error.code != "VALIDATION_ERROR":
                raise
            return self._invalid()
        return self._shown(result, {} if state is None else {"state": state})

    async def close(self) -> None:
        await self._client.close()

    @asynccontextmanager
    async def _asked(self) -> AsyncIterator[None]:
        """Convert errors of a call to the server into WorkFailed."""
        try:
            yield
        except ConnectionClosed as error:
            msg = f"the OpenEnv server at {self._url} ended the session: {error}"
            raise WorkFailed(FailureCode.ENVIRONMENT_AWAY, msg, retriable=True) from error
        except ConnectionError as error:
            raise self._not_connected(error) from error
        except RuntimeError as error:
            found = CODE.search(str(error))
            theirs = found[1] if found else ""
            full = theirs == "CAPACITY_REACHED"
            ours = FailureCode.ENVIRONMENT_AWAY if full else FailureCode.RAISED
            msg = f"the OpenEnv server at {self._url}: {error}"
            code = theirs if theirs == "VALIDATION_ERROR" else ours
            raise WorkFailed(code, msg, retriable=full) from error

    def _not_connected(self, error: ConnectionError) -> WorkFailed:
        """Return `bad_config` if another server answers there, else a retriable error."""
        cause = error.__cause__
        status = cause.response.status_code if isinstance(cause, InvalidStatus) else 0
        if 0 < status < 500:
            msg = f"{self._url} is no OpenEnv server: it answers /ws with HTTP {status}"
            return WorkFailed(FailureCode.BAD_CONFIG, msg, retriable=False)
        msg = f"no OpenEnv server at {self._url}: {error}"
        return WorkFailed(FailureCode.ENVIRONMENT_AWAY, msg, retriable=True)

    def _shown(self, result: Any, info: Mapping[str, object]) -> Observation:
        seen = result.observation
        self._text = orjson.dumps(seen).decode()
        if self._observation:
            with convert_errors(
                FailureCode.BAD_CONFIG, f"{self._observation!r} cannot be filled from {self._text}"
            ):
                self._text = self._observation.format_map(seen)
        return Observation(self._text, float(result.reward or 0.0), bool(result.done), info=info)

    def _invalid(self) -> Observation:
        text = self._invalid_prefix + self._text
        return Observation(text, self._invalid_penalty, info={"invalid": True})

    def _read(self, action: str) -> dict[str, Any] | None:
        """Convert a text into the server's action object; None if it is invalid."""
        if self._action is not None:
            return {key: _filled(value, action) for key, value in self._action.items()}
        if self._actions is not None:
            meant = self._actions.get(action.strip())
            return None if meant is None else dict(meant)
        try:
            read = orjson.loads(action)
        except orjson.JSONDecodeError:
            return None
        return read if isinstance(read, dict) else None


def _filled(template: Any, text: str) -> Any:
    """Fill the text of an action into all strings of a template."""
    if isinstance(template, str):
        return template.replace(TEXT, text)
    if isinstance(template, Mapping):
        return {key: _filled(value, text) for key, value in template.items()}
    return [_filled(value, text) for value in template] if isinstance(template, list) else template
