"""The phases of a rollout, from its journal alone: submitted, scheduled, started, executed.

Append times say when something was known, and an answer says how long its work took: so its slot
was had so long before it came. Only the last attempt is timed; what came before it is nobody's
phase. What a journal of an older release does not say stays None.
"""

from schemas.messages import EnvironmentStepped, RolloutTimers


class AttemptPhases:
    """How far one attempt has come, by its counted observations."""

    __slots__ = ("_began_ms", "_first_ms", "_starting_s", "_to_slot_s")

    def __init__(self, began_ms: int) -> None:
        self._began_ms = began_ms
        """Append time of the rollout's start, or of the attempt's."""
        self._first_ms: int | None = None
        self._to_slot_s = 0.0
        self._starting_s = 0.0

    def observe(self, body: EnvironmentStepped, at_ms: int) -> None:
        """Take an answer that counts; only openings, which have applied no step, begin a phase."""
        if body.index or not body.took_s:
            return
        self._starting_s += body.took_s
        if self._first_ms is None:
            self._first_ms = at_ms
            self._to_slot_s = max(0.0, (at_ms - self._began_ms) / 1000 - body.took_s)

    def timers(self, requested_ms: int, started_ms: int, ended_ms: int) -> RolloutTimers | None:
        """All four at the rollout's end; None where its journal tells of none.

        Brokers' clocks differ: nothing takes less than no time.
        """
        submission_s = max(0, started_ms - requested_ms) / 1000 if requested_ms > 0 else None
        if self._first_ms is None:
            return None if submission_s is None else RolloutTimers(submission_s)
        execution_s = max(0, ended_ms - self._first_ms) / 1000
        return RolloutTimers(submission_s, self._to_slot_s, self._starting_s, execution_s)
