"""The schema that each schema id of a cluster means, kept on `stores`, so that processes agree.

The first record about an id counts, until a record says to forget it; then the first one after
that counts. A process ties the ids of all our schemas at its start, before it writes a value under
one, and any other id (such as one of an earlier release) when it first reads a value under it. So a
worker that is given another registry than the others stops, before it reads or writes wrong values.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

import structlog

from rollcall.schemas.errors import DeliveryFailed, Refused, TopicsDiffer, Unavailable, WorkFailed
from rollcall.schemas.schema_memory import SCHEMA_ID, IdRecord, id_record

if TYPE_CHECKING:
    from rollcall.consumers.log.protocols import Log

WAIT_S = 10.0
"""The time without an answer after which the log counts as unreachable."""
FRESH_S = 5.0
"""The time after which the log is read again for an id that differs: it may be forgotten."""

log = structlog.get_logger()


class SchemaIds:
    """The ties of one log, read when an id is new to the process. Not thread-safe."""

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
        """Ties that only this process knows, as it cannot write them to the log."""
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
        """Return True if the ids need no new read: known, and equal or read a moment ago."""
        fresh = self.clock() < self._fresh_until
        return all(
            each in self._tied and (fresh or self._tied[each] == form)
            for each, form in offered.items()
        )

    def forget(self, schema_id: int, by: str) -> None:
        """Release an id, so that the next process that reads it ties it anew.

        Raises Refused for one that is not tied, TopicsDiffer, NoTopic, Unavailable.
        """
        self.require(schema_id)
        self._write([IdRecord(schema_id, forgotten_by=by)])

    def require(self, schema_id: int) -> None:
        """Raise Refused if the log has no tie for an id; TopicsDiffer, Unavailable."""
        tied = self.read()
        if schema_id not in tied:
            known = ", ".join(map(str, sorted(tied))) or "none"
            msg = f"{self.topic} ties no schema id {schema_id}; it ties {known}"
            raise Refused(msg)

    def read(self) -> dict[int, str]:
        """Read all ties from the log. Raises TopicsDiffer if the topic is missing, Unavailable.

        It does not wait for a broker that becomes unreachable: the caller may have other work.
        """
        from rollcall.consumers.log.reading import polls

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
            # The first record counts, so that processes which tied an id at once agree on it.
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
