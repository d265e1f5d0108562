"""The engine protocol: add calls, take one decode step at a time, collect answers.

An engine is driven by one thread. Calls join and leave its batch between decode steps, and new
weights are adopted there too, so every sampled token has exactly one version.
"""

from dataclasses import dataclass
from typing import Protocol

from rollcall.schemas.messages import CallFailed, ModelAnswered, ModelCall, PolicyVersion


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """The result of one call."""

    call: ModelCall
    body: ModelAnswered | CallFailed


class Engine(Protocol):
    """An engine: it continues token sequences for one policy."""

    policy_id: str
    version: int
    """The version of the weights in service; -1 until there are any."""
    wait_s: float
    """The time that the driving thread may wait before the next `step` of a busy engine:
    0 where `step` computes, more where it only collects results computed elsewhere."""

    def add(self, call: ModelCall) -> None:
        """Let a call join the batch at the next step; a later `step` returns its answer.

        No call is answered before there is a version; a call whose `min_policy_version` is newer
        waits for it. Never raises for a bad call: its answer is a CallFailed with `prefix_needed`
        (retriable), `too_long`, `bad_sampling`, `bad_prefix` or `not_renderable`; or `busy`
        (retriable, not counted as a try) if there is no room for it in time.
        """
        ...

    def step(self) -> list[EngineAnswer]:
        """Take one decode step for all running calls; return the answers of those that ended."""
        ...

    def busy(self) -> bool:
        """Return True if a step has anything to do."""
        ...

    def expire(self, now_ms: int) -> list[ModelCall]:
        """Drop the calls that have not begun before their deadline; return them."""
        ...

    def abort(self, rollout_id: str, attempt: int) -> None:
        """Drop the rollout's calls of this attempt and of earlier ones; they get no answer."""
        ...

    def replica(self) -> "Engine":
        """Return another engine of this kind, with no version and none of this one's state.

        It answers calls for a fixed version while this one moves on to newer ones.
        """
        ...

    def stage(self, version: PolicyVersion) -> None:
        """Read, verify and decode weights beside those in service; answers do not change.

        The only method that a second thread may call, while the driving one takes steps; not
        while it adopts. Weights staged before are dropped. Versions never go back: one that is
        not newer is ignored. Raises Unavailable if the file cannot be read now, WireError if it
        does not match its record, WorkFailed(`weights`) if its tensors do not fit this model;
        then nothing is staged.
        """
        ...

    def adopt(self) -> None:
        """Put the staged weights in service between two steps, if the canary proves them.

        Calls in flight continue, and their later tokens carry the new version. Does nothing if
        nothing is staged. Raises WorkFailed(`canary`) if the staged weights do not score the canary
        as the trainer did: they are dropped, and the present version stays in service.
        """
        ...
