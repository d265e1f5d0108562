"""The quotas as they are now, for whoever only looks."""

from contextlib import closing

from consumers.history.history import History
from consumers.log.reading import POLL_S, uninterrupted
from consumers.quota_table import QuotaTable
from schemas.messages import Quota


def read_quotas(history: History, default: Quota) -> QuotaTable:
    """All that `quotas` says, as every agents worker reads it; raises Unavailable."""
    table = QuotaTable(history.log, history.codec, history.topics, default)
    with closing(table):
        while not table.known:
            with uninterrupted():
                table.follow(POLL_S)
    return table
