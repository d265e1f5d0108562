"""The engine protocol: calls go in, one decode step at a time is taken, answers come out.

An engine is driven by one thread. Calls join and leave its batch between decode steps, and new
weights are adopted there too, so every sampled token has exactly one version.
"""

from dataclasses import dataclass
from typing import Protocol

from schemas.messages import CallFailed, ModelAnswered, ModelCall, PolicyVersion


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """What came of one call."""

    call: ModelCall
    body: ModelAnswered | CallFailed


class Engine(Protocol):
    """Continues token sequences for one policy."""

    policy_id: str
    version: int
    """The weights now served; -1 until there are any."""
    wait_s: float
    """How long the driving thread may do something else before the next `step` of a busy engine:
    0 where `step` computes, more where it only collects what is computed elsewhere."""

    def add(self, call: ModelCall) -> None:
        """Let a call join the batch at the next step; its answer comes out of some later `step`.

        Nothing is answered before there is a version; a call whose `min_policy_version` is newer
        waits for it. Never raises for a bad call: its answer is a CallFailed with `prefix_needed`
        (retriable), `too_long`, `bad_sampling`, `bad_prefix` or `not_renderable`; or `busy`
        (retriable) where it has no place for it in time, which costs the call no try.
        """
        ...

    def step(self) -> list[EngineAnswer]:
        """Take one decode step for all calls in hand; return those that ended with it."""
        ...

    def busy(self) -> bool:
        """Whether a step would do anything."""
        ...

    def expire(self, now_ms: int) -> list[ModelCall]:
        """Forget the calls that have not begun and may not begin any more; return them."""
        ...

    def abort(self, rollout_id: str, attempt: int) -> None:
        """Forget the rollout's calls of this attempt and of those before; they get no answer."""
        ...

    def twin(self) -> "Engine":
        """Another engine of this kind that holds no version yet, nor anything else of this one's.

        It answers what is asked of one version while this one goes on to newer ones.
        """
        ...

    def stage(self, version: PolicyVersion) -> None:
        """Read, verify and decode weights beside those that serve; nothing of an answer changes.

        The only method that another thread than the driving one may call, while that one takes
        steps; not while it adopts. What was staged before is dropped. Versions never go back: one
        that is not newer is passed over. Raises Unavailable when the file cannot be read now,
        WireError when it is not what its record promises, WorkFailed(`weights`) when its tensors
        are not this model's; nothing is staged then.
        """
        ...

    def adopt(self) -> None:
        """Put the staged weights in service between two steps, once the canary has proven them.

        Calls in flight go on, and later tokens carry the new version. Without anything staged
        nothing happens. Raises WorkFailed(`canary`) when the staged weights do not score the canary
        as the trainer did: they are dropped, and the present version serves on.
        """
        ...
