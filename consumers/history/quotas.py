"""Read-only access to the present quotas, and to the use that counts against them."""

from collections import Counter
from contextlib import closing

from rollcall.consumers.agents.begun_this_hour import begun_of
from rollcall.consumers.history.history import History
from rollcall.consumers.log.reading import POLL_S, read_all, uninterrupted
from rollcall.consumers.quota_table import QuotaTable
from rollcall.schemas.messages import Quota


def read_quotas(history: History, default: Quota) -> QuotaTable:
    """Return the table of quotas as agents workers read it; raises Unavailable."""
    table = QuotaTable(history.log, history.codec, history.topics, default)
    with closing(table):
        while not table.known:
            with uninterrupted():
                table.follow(POLL_S)
    return table


def ended_since(history: History, at_ms: int) -> Counter[str]:
    """Count by user the rollouts that had begun and ended since then; raises Unavailable."""
    topic = history.topics.trajectories
    starts = history.log.offsets_for_times([topic], at_ms)
    began = {
        (record.partition, first): user
        for record in read_all(history.log, [topic], starts)
        for user, first in [begun_of(history.codec, record) or ("", -1)]
        if first >= 0
    }
    return Counter(began.values())
