"""The waits of every rollout that is not done.

A wait has a reason, a beginning, mostly a deadline, and a place: the partition whose owner has to
act.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rollcall.consumers.agents.effects import CallModel
from rollcall.consumers.agents.fold.outstanding import OutstandingEffect
from rollcall.consumers.agents.fold.rollout import Rollout
from rollcall.consumers.history.reading.times import iso
from rollcall.consumers.history.waiting.open_work import (
    EndedRollout,
    OpenWork,
    PartitionOwner,
    Run,
    ScoringPosition,
    run_of,
)
from rollcall.consumers.history.waiting.user_limits import UNKNOWN, UserLimits
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import AttemptStarted, RolloutFinished, RolloutRequest

REASONS = ("admission", "call", "step", "decision", "program", "reward", "group")
MEMBERS_NAMED = 4
"""The number of missing members of a group that are named."""


@dataclass(frozen=True, slots=True)
class Wait:
    """One thing that one rollout waits for."""

    rollout_id: str
    group_id: str
    reason: str
    what: str
    since_ms: int
    deadline_ms: int | None
    at: PartitionOwner | None
    """None if the trainer has to act: it is no member of a group."""


def waits_of(work: OpenWork, limits: UserLimits | None = None) -> list[Wait]:
    """Return the waits of every rollout, one for each reason; the oldest first."""
    return _Waits(work, limits).all()


class _Waits:
    def __init__(self, work: OpenWork, limits: UserLimits | None) -> None:
        self.work = work
        self.limits = limits
        if limits is not None:
            limits.note(filter(work.has_begun, work.open()), work.unsent_calls())
        self._unloadable: dict[str, str] = {}

    def all(self) -> list[Wait]:
        """Return one wait for each reason; the oldest first."""
        waits = [*self._admissions(), *self._running(), *self._rewards(), *self._groups()]
        same: dict[tuple[str, str], list[Wait]] = defaultdict(list)
        for wait in sorted(waits, key=lambda wait: (wait.since_ms, wait.rollout_id)):
            same[wait.rollout_id, wait.reason].append(wait)
        return [_as_one(each) for each in same.values()]

    def _admissions(self) -> Iterator[Wait]:
        for unstarted in self.work.unstarted.values():
            place = PartitionOwner(
                self.work.topics.group("agents"), self.work.topics.requests, unstarted.partition
            )
            yield _wait(unstarted.request, "admission", "not started", unstarted.at_ms, None, place)

    def _running(self) -> Iterator[Wait]:
        for rollout in self.work.open():
            journal = PartitionOwner(
                self.work.topics.group("agents"), self.work.topics.events, rollout.partition
            )
            missing = self._missing_program(rollout.request.agent)
            if missing:
                end = rollout.ends_ms()
                yield _wait(rollout.request, "program", missing, rollout.started_ms, end, journal)
            elif rollout.decision is not None:
                since = self.work.touched[run_of(rollout)]
                what = _decided(rollout)
                yield _wait(rollout.request, "decision", what, since, rollout.ends_ms(), journal)
            else:
                for waits in rollout.attempt.outstanding.values():
                    yield self._outstanding(rollout, waits, journal)

    def _missing_program(self, name: str) -> str:
        """Return why a program cannot be loaded here; without it the
        rollout's effects are unknown."""
        if name not in self._unloadable:
            try:
                self.work.world.program_of(name)
            except Refused as error:
                self._unloadable[name] = f"not known, its program cannot be loaded here: {error}"
            else:
                self._unloadable[name] = ""
        return self._unloadable[name]

    def _outstanding(
        self, rollout: Rollout, waits: OutstandingEffect, journal: PartitionOwner
    ) -> Wait:
        request = rollout.request
        place = rollout.attempt.number, waits.position, waits.tries
        sent = self.work.place_of(rollout, waits)
        limit = self.limits.of_call(rollout, waits) if self.limits and sent is None else ""
        if sent is None and rollout.at_first_command() and not limit:
            what = self.limits.of_start(request.user) if self.limits else UNKNOWN
            return _wait(request, "admission", what, waits.opened_ms, None, journal)
        # The deadline of a call does not run while its user's rate holds it.
        deadline = rollout.ends_ms() if limit else min(waits.deadline_ms(), rollout.ends_ms())
        what = f"{self.work.asked_for(rollout, waits)} {'/'.join(map(str, place))}"
        if sent is None:
            what += f", not sent yet{limit and ': '}{limit}"
        reason = "call" if isinstance(waits.effect, CallModel) else "step"
        line = self.work.in_line.get((request.rollout_id, rollout.attempt.number))
        if reason == "step" and line is not None:
            at = iso(line[1]) or ""
            what += f", waits for a {line[0]} slot since {at[11:19]}"
        return _wait(request, reason, what, waits.opened_ms, deadline, sent or journal)

    def _rewards(self) -> Iterator[Wait]:
        """Yield owed scores: one by each scoring that the request names, else one by any."""
        known = {each: ScoringPosition(each) for each in self.work.scored}
        known |= {scoring.scoring_id: scoring for scoring in self.work.scorings}
        likely = max(known.values(), key=_takes_unnamed, default=ScoringPosition(""))
        for run, ended in self.work.ended.items():
            scored = {s.scoring_id for s in known.values() if self._is_scored(s, run, ended)}
            for name in ended.scorings:
                scoring = known.get(name, ScoringPosition(name))
                if name not in scored and not scoring.retired:
                    yield self._reward(name, ended)
            if known and not ended.scorings and not scored:
                yield self._reward(likely.scoring_id, ended)

    def _is_scored(self, scoring: ScoringPosition, run: Run, ended: EndedRollout) -> bool:
        finished = any(scoring.finished(ended.partition, offset) for offset in ended.offsets)
        return finished or run in self.work.scored.get(scoring.scoring_id, {})

    def _reward(self, scoring_id: str, ended: EndedRollout) -> Wait:
        topics, what = self.work.topics, f"scoring {scoring_id!r}"
        if ended.offsets:
            group = topics.group("rewards", scoring_id)
            place = PartitionOwner(group, topics.trajectories, ended.partition)
        else:
            what += ", its trajectory is not written yet"
            place = PartitionOwner(topics.group("agents"), topics.events, ended.partition)
        return Wait(ended.rollout_id, ended.group_id, "reward", what, ended.ended_ms, None, place)

    def _groups(self) -> Iterator[Wait]:
        """Yield the scored members of incomplete groups."""
        missing: dict[str, set[str]] = defaultdict(set)
        for request in self.work.requests():
            missing[request.group_id].add(request.rollout_id)
        for ended in self.work.ended.values():
            missing[ended.group_id].add(ended.rollout_id)
        for (scoring_id, group_id), members in self.work.members.items():
            size = self.work.sizes[group_id]
            if len(members) < size:
                others = sorted(missing[group_id] - members.keys())
                what = f"{len(members)} of {size} scored by {scoring_id!r}, missing {_some(others)}"
                for rollout_id, at_ms in members.items():
                    yield Wait(rollout_id, group_id, "group", what, at_ms, None, None)


def _takes_unnamed(scoring: ScoringPosition) -> tuple[bool, bool]:
    """Rank the scorings that may score a rollout whose request names none."""
    return scoring.live, not scoring.retired


def _wait(
    request: RolloutRequest,
    reason: str,
    what: str,
    since_ms: int,
    deadline_ms: int | None,
    at: PartitionOwner,
) -> Wait:
    return Wait(request.rollout_id, request.group_id, reason, what, since_ms, deadline_ms, at)


def _as_one(waits: Sequence[Wait]) -> Wait:
    """Merge a rollout's waits for one reason into the oldest, which lists the others too.

    A rollout may wait for several calls at once; an id may be requested, or end, more than once.
    """
    texts = dict.fromkeys(wait.what for wait in waits)
    return replace(waits[0], what=_some(list(texts)))


def _decided(rollout: Rollout) -> str:
    """Describe the next entry that an agents worker has to write."""
    body = rollout.decision.body if rollout.decision else None
    if isinstance(body, RolloutFinished):
        return f"an agents worker has to write its end: {body.status} {body.code}".rstrip()
    reason = body.reason if isinstance(body, AttemptStarted) else ""
    return f"an agents worker has to begin attempt {rollout.attempt.number + 1}: {reason:.200}"


def _some(names: Sequence[str]) -> str:
    """Return the first few of some names; a member that was never requested has none."""
    if not names:
        return "members that nobody asked for"
    more = f" and {len(names) - MEMBERS_NAMED} more" if len(names) > MEMBERS_NAMED else ""
    return f"{', '.join(names[:MEMBERS_NAMED])}{more}"
