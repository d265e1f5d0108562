"""Who can be told to leave: the workers of our groups, and trainers."""

from consumers.history.history import LiveHistory
from consumers.log.reading import read_all

SIGNED_BY = "ce_source"


def worker_names(history: LiveHistory) -> set[str]:
    """Members of our groups now, and trainers, which are in no group but sign what they write.

    Raises Unavailable.
    """
    log, topics = history.log, history.topics
    groups = [name for name in log.group_names() if name.startswith(topics.prefix)]
    names = {member.client_id for member in history.admin.members(groups)}
    for record in read_all(log, [topics.versions]):
        names |= {v.decode() for name, v in record.headers or [] if name == SIGNED_BY and v}
    return names
