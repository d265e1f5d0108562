"""The requests that continue cancelled rollouts: forks of themselves at their last answer.

Each trajectory states its range of the journal, so only that is read. A rollout that cannot be
forked (its program has changed, its environment does not replay, its journal is gone) begins again,
as does one without an answer so far.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from rollcall.consumers.agents.fold.context import FoldContext
from rollcall.consumers.history.reading.history import History
from rollcall.consumers.history.rollouts.fork_request import ForkParent, continuation, parent_in
from rollcall.consumers.history.rollouts.rollout_story import latest, stories
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.log.reading import read_between, spans
from rollcall.consumers.loop.dead_letters import skipped_in_journal
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import RolloutRequest, Trajectory

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Continuations:
    """Makes continuations from the log."""

    history: History
    world: FoldContext
    masked: bool = False
    """True to mask all tokens sampled so far."""

    def requests(self, ended: Sequence[Trajectory]) -> list[RolloutRequest]:
        """Return the requests, in the order of the trajectories; raises Unavailable."""
        journals = self._journals(ended)
        return [self._request(each, journals[each.rollout_id]) for each in ended]

    def _request(self, ended: Trajectory, journal: list[Record]) -> RolloutRequest:
        assert ended.request is not None
        try:
            return continuation(self._parent(ended, journal), masked=self.masked)
        except Refused as error:
            log.warning("rollout_restarted", rollout_id=ended.rollout_id, reason=str(error))
            return ended.request

    def _parent(self, ended: Trajectory, journal: list[Record]) -> ForkParent:
        """Return the rollout to fork; raises Refused."""
        if not journal:
            msg = f"rollout {ended.rollout_id!r} cannot be forked: its journal is past retention"
            raise Refused(msg)
        found = latest(stories(ended.rollout_id, journal, self.history.codec))
        return parent_in(found, self.world)

    def _journals(self, ended: Sequence[Trajectory]) -> dict[str, list[Record]]:
        """Return the records of each rollout's range of the journal."""
        topic = self.history.topics.events
        stretches = (
            ((topic, each.journal_partition), each.first_offset, each.last_offset) for each in ended
        )
        extent = spans(self.history.log, stretches)
        wanted = {each.rollout_id.encode(): each for each in ended}
        journals: dict[str, list[Record]] = {each.rollout_id: [] for each in ended}
        for records in read_between(self.history.log, *extent):
            for record in records:
                its = wanted.get(record.key or b"")
                if its and its.first_offset <= record.offset <= its.last_offset:
                    journals[its.rollout_id].append(record)
        skipped = skipped_in_journal(self.history.log, self.history.topics)
        return {name: list(skipped.counted(records)) for name, records in journals.items()}
