"""The phases of a rollout, from its journal alone: submitted, scheduled, started, executed.

Append times tell when something was known, and an answer states how long its work took: its slot
was obtained that long before the answer. Only the last attempt is timed; earlier attempts belong to
no phase. Values that the journal does not tell stay None.
"""

from rollcall.schemas.messages import EnvironmentStepped, RolloutTimers


class AttemptPhases:
    """The phase times of one attempt so far, from its counted observations."""

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
        """Return all four durations at the rollout's end; None if its journal has none of them.

        Clocks of brokers differ, so negative durations become 0.
        """
        submission_s = max(0, started_ms - requested_ms) / 1000 if requested_ms > 0 else None
        if self._first_ms is None:
            return None if submission_s is None else RolloutTimers(submission_s)
        execution_s = max(0, ended_ms - self._first_ms) / 1000
        return RolloutTimers(submission_s, self._to_slot_s, self._starting_s, execution_s)
