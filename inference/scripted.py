"""A shipped fake engine: a function returns the policy's answers; no weights, no waiting.

It behaves like a real engine: no call is answered before there is a version, calls that need a
newer version are held, aborted calls get no answer. Its tokens are made up but well formed: one per
UTF-8 byte unless `encode` does it differently. The script writes tool calls in the format `hermes`,
as a policy would. A prepared ModelAnswered is returned as it is. `rollcall.inference.text_script`
turns a function of the whole conversation into a script.
"""

from collections.abc import Callable, Sequence

from rollcall.inference.engine import EngineAnswer
from rollcall.inference.stream_text import cut_at, first_stop_ends
from rollcall.inference.tools import NONE, calls_in
from rollcall.inference.waiting_calls import WaitingCalls
from rollcall.schemas.errors import FailureCode, WorkFailed
from rollcall.schemas.ids import digest
from rollcall.schemas.messages import CallFailed, ModelAnswered, ModelCall, PolicyVersion
from rollcall.schemas.packed import pack_ids, pack_logprobs

Script = Callable[[ModelCall], str | ModelAnswered]
"""A function that returns the answer to a call; it may raise WorkFailed."""
Render = Callable[[ModelCall], str]
"""A function that returns the text that a call adds to its sequence; may raise WorkFailed."""

TOOLS = "hermes"
"""The format in which scripts write tool calls."""
LOGPROB = -0.5
"""The log-probability of every made-up token."""


def utf8(text: str) -> list[int]:
    """Encode a text with one token per byte."""
    return list(text.encode())


def contents(call: ModelCall) -> str:
    """Return the contents of the new messages, concatenated."""
    return "".join(message.content for message in call.messages)


class ScriptedEngine:
    """An engine that answers every call at the next step; see `rollcall.inference.engine.Engine`.

    `version` is served from the start; give -1 for an engine that waits for its first weights.
    """

    def __init__(
        self,
        policy_id: str,
        script: Script,
        *,
        encode: Callable[[str], Sequence[int]] = utf8,
        render: Render = contents,
        version: int = 0,
    ) -> None:
        self.policy_id = policy_id
        self.version = version
        self.wait_s = 0.0
        self._script = script
        self._encode = encode
        self._render = render
        form = () if render is contents else (render.__name__,)
        self._template_digest = digest("scripted", *form).hex()
        self._waiting = WaitingCalls()
        self._staged = -1

    def add(self, call: ModelCall) -> None:
        self._waiting.add(call, self.version)

    def step(self) -> list[EngineAnswer]:
        if self.version < 0:
            return []
        answers = [EngineAnswer(call, self._body(call)) for call in self._waiting.ready]
        self._waiting.ready.clear()
        return answers

    def busy(self) -> bool:
        return self.version >= 0 and bool(self._waiting.ready)

    def expire(self, now_ms: int) -> list[ModelCall]:
        return self._waiting.expire(now_ms)

    def abort(self, rollout_id: str, attempt: int) -> None:
        self._waiting.abort(rollout_id, attempt)

    def replica(self) -> "ScriptedEngine":
        """Return an engine with the same script that waits for its first weights."""
        return ScriptedEngine(
            self.policy_id, self._script, encode=self._encode, render=self._render, version=-1
        )

    def stage(self, version: PolicyVersion) -> None:
        """Store the version number; nothing is loaded."""
        self._staged = version.version

    def adopt(self) -> None:
        """Serve the staged version number; nothing is checked."""
        self.version, self._staged = max(self.version, self._staged), -1
        self._waiting.release(self.version)

    def _body(self, call: ModelCall) -> ModelAnswered | CallFailed:
        if call.prefix_ids is None and call.prefix_length:
            msg = f"the prefix of {call.prefix_length} tokens is not held here; send it whole"
            return CallFailed(FailureCode.PREFIX_NEEDED, msg, retriable=True)
        try:
            answer = self._said(call)
            return self._answer_of(call, answer) if isinstance(answer, str) else answer
        except WorkFailed as error:
            return CallFailed(error.code, str(error), error.retriable)

    def _said(self, call: ModelCall) -> str | ModelAnswered:
        """Return the script's answer; it is not called if no token is to be sampled."""
        return self._script(call) if call.sampling.max_tokens else ""

    def _answer_of(self, call: ModelCall, text: str) -> ModelAnswered:
        sampling, limit = call.sampling, call.sampling.max_tokens
        text = text[: first_stop_ends(text, sampling.stop)]
        ids = list(self._encode(text))
        added = self._encode(self._render(call))
        if len(ids) > limit and self._encode is utf8:
            text = bytes(ids[:limit]).decode(errors="ignore")
        text, stopped_by = cut_at(text, sampling.stop if len(ids) <= limit else ())
        content, calls = calls_in(TOOLS if call.tools else NONE, text, call.command_id)
        count = min(len(ids), limit)
        return ModelAnswered(
            text=content,
            tool_calls=calls,
            added_ids=pack_ids(added),
            token_ids=pack_ids(ids[:limit]),
            logprobs=pack_logprobs([LOGPROB] * count),
            versions=pack_ids([self.version] * count),
            finish_reason="stop" if len(ids) <= limit > 0 else "length",
            policy_id=call.policy_id,
            sequence=call.sequence,
            engine="scripted",
            precision="float32",
            template_digest=self._template_digest,
            stopped_by=stopped_by,
        )
