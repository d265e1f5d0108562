"""What each schema id of a cluster stands for, kept on `stores`, so that all processes agree.

The first record about an id counts, until one says that it is to be forgotten: then the first one
after that. A process ties the ids of all our schemas when it starts to work, so before it writes a
value under one, and any other id when it first reads a value under it, such as that of an earlier
release. A worker on a new machine that is given another registry than the others is thereby held,
and reads and writes nothing wrong.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

import structlog

from schemas.errors import DeliveryFailed, Refused, TopicsDiffer, Unavailable, WorkFailed
from schemas.schema_memory import SCHEMA_ID, IdRecord, id_record

if TYPE_CHECKING:
    from consumers.log.protocols import Log

WAIT_S = 10.0
"""After so long without an answer the log counts as away."""
FRESH_S = 5.0
"""How soon the log is read again where an id stands for something else: it may be forgotten."""

log = structlog.get_logger()


class SchemaIds:
    """The ties of one log, read when an id is new to the process. For one thread at a time."""

    def __init__(
        self,
        make_log: "Callable[[], Log]",
        topic: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_log = make_log
        self.topic = topic
        self.clock = clock
        self._tied: dict[int, str] = {}
        self._fresh_until = 0.0
        self._not_kept: dict[int, str] = {}
        """Ties that only this process knows: the log does not take them."""
        self._warned: set[str] = set()

    def first(self, offered: Mapping[int, str]) -> dict[int, str]:
        """Return the fingerprints that ids are tied to; tie those that are not to the offered ones.

        Without the topic, or the right to write to it, a tie lasts as long as this process. Raises
        Unavailable.
        """
        if self._is_known(offered):
            return {each: self._tied[each] for each in offered}
        try:
            tied = self.read()
            new = [IdRecord(each, form) for each, form in offered.items() if each not in tied]
            if new:
                self._write(new)
                tied = self.read()
        except (TopicsDiffer, WorkFailed, DeliveryFailed) as error:
            self._warn("schema_ids_not_kept", error=str(error))
            tied = {**{i: self._not_kept.setdefault(i, offered[i]) for i in offered}, **self._tied}
        if missing := offered.keys() - tied.keys():
            msg = (
                f"what schema id {min(missing)} stands for was written to {self.topic} and is not "
                "read back; `rollcall topics stats` says whether somebody holds a transaction open"
            )
            raise Unavailable(msg)
        return {each: tied[each] for each in offered}

    def _is_known(self, offered: Mapping[int, str]) -> bool:
        """Whether the log need not be read for some ids: where they differ, it was a moment ago."""
        fresh = self.clock() < self._fresh_until
        return all(
            each in self._tied and (fresh or self._tied[each] == form)
            for each, form in offered.items()
        )

    def forget(self, schema_id: int, by: str) -> None:
        """Have the next process that meets an id tie it anew.

        Raises Refused for one that is not tied, TopicsDiffer, NoTopic, Unavailable.
        """
        self.require(schema_id)
        self._write([IdRecord(schema_id, forgotten_by=by)])

    def require(self, schema_id: int) -> None:
        """Raise Refused where the log ties an id to nothing; TopicsDiffer, Unavailable."""
        tied = self.read()
        if schema_id not in tied:
            known = ", ".join(map(str, sorted(tied))) or "none"
            msg = f"{self.topic} ties no schema id {schema_id}; it ties {known}"
            raise Refused(msg)

    def read(self) -> dict[int, str]:
        """Read all ties from the log. Raises TopicsDiffer where the topic is missing, Unavailable.

        A broker that leaves meanwhile is not waited for: what calls this may have other work.
        """
        from consumers.log.reading import polls

        tied: dict[int, str] = {}
        until = self.clock() + WAIT_S
        with closing(self._make_log().reader([self.topic])) as reader:
            for records in polls(reader):
                for record in records:
                    self._apply(record.value, record.headers or [], tied)
                if records:
                    until = self.clock() + WAIT_S
                elif self.clock() > until:
                    msg = f"nothing came of {self.topic} within {WAIT_S:g} s"
                    raise Unavailable(msg)
        self._tied, self._fresh_until = tied, self.clock() + FRESH_S
        return tied

    def _apply(
        self, value: bytes | None, headers: list[tuple[str, bytes]], tied: dict[int, str]
    ) -> None:
        found = None if value else id_record(headers)
        if found is None:
            if not value and any(name == SCHEMA_ID for name, _ in headers):
                self._warn("schema_id_unreadable", topic=self.topic)
        elif found.fingerprint:
            tied.setdefault(found.schema_id, found.fingerprint)
        else:
            tied.pop(found.schema_id, None)

    def _write(self, records: Iterable[IdRecord]) -> None:
        """Write records and wait for the acks; raises NoTopic, DeliveryFailed, Unavailable."""
        refused: list[WorkFailed] = []
        out = self._make_log().publisher()
        for record in records:
            key, headers = f"{SCHEMA_ID} {record.schema_id}", record.headers()
            out.send(self.topic, key, b"", partition=0, headers=headers, refused=refused.append)
        if out.flush(WAIT_S):
            msg = f"records for {self.topic} were not acked within {WAIT_S:g} s"
            raise Unavailable(msg)
        if refused:
            raise refused[0]

    def _warn(self, event: str, **fields: str) -> None:
        """Log a warning, once in this process."""
        if event not in self._warned:
            self._warned.add(event)
            log.warning(event, **fields)
