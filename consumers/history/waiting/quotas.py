"""Read-only access to the present quotas."""

from contextlib import closing

from rollcall.consumers.history.reading.history import History
from rollcall.consumers.log.reading import POLL_S, uninterrupted
from rollcall.consumers.loop.quota_table import QuotaTable
from rollcall.schemas.messages import Quota


def read_quotas(history: History, default: Quota) -> QuotaTable:
    """Return the table of quotas as agents workers read it; raises TopicsDiffer, Unavailable."""
    table = QuotaTable(history.log, history.codec, history.topics, default)
    with closing(table):
        while not table.known:
            with uninterrupted():
                table.follow(POLL_S)
    return table
