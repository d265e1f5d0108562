"""An engine that repeats recorded answers bit for bit.

A call is found by its place (rollout, attempt, position), else by the digest of its body, which
finds the same question of another run. Of several recorded answers the first one counts, as in the
fold.
"""

from collections.abc import Iterable

from rollcall.inference.scripted import ScriptedEngine
from rollcall.schemas.errors import FailureCode, WorkFailed
from rollcall.schemas.messages import Event, ModelAnswered, ModelCall


class RecordedEngine(ScriptedEngine):
    """An engine that answers from recorded events, else with CallFailed(`not_recorded`)."""

    def __init__(self, policy_id: str, events: Iterable[Event], *, version: int = 0) -> None:
        super().__init__(policy_id, self._said, version=version)
        self._by_place: dict[tuple[str, int, int], ModelAnswered] = {}
        self._by_body: dict[bytes, ModelAnswered] = {}
        for event in events:
            if isinstance(event.body, ModelAnswered) and event.body.policy_id == policy_id:
                place = (event.rollout_id, event.attempt, event.position)
                self._by_place.setdefault(place, event.body)
                self._by_body.setdefault(event.body_digest, event.body)

    def _said(self, call: ModelCall) -> ModelAnswered:
        place = (call.rollout_id, call.attempt, call.position)
        answer = self._by_place.get(place)
        if answer is None and call.body_digest:
            answer = self._by_body.get(call.body_digest)
        if answer is None:
            msg = f"no answer on record for rollout {place[0]!r}, attempt {place[1]}, position "
            raise WorkFailed(FailureCode.NOT_RECORDED, f"{msg}{place[2]}", retriable=False)
        return answer
