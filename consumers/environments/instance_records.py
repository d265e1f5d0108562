"""Events of boxes, and of sessions that wait for a slot, as records on `instances`.

They are informative: no other record depends on one, and if one cannot be written, work continues
without it.
"""

import socket
from dataclasses import replace

import structlog

from rollcall.consumers.loop.answers import AnswerWriter
from rollcall.schemas.errors import RollcallError, WorkFailed
from rollcall.schemas.headers import hot_headers
from rollcall.schemas.ids import digest
from rollcall.schemas.messages import Instance

log = structlog.get_logger()


def host_name() -> str:
    """Return the host name of this machine."""
    return socket.gethostname()


class InstanceRecords:
    """Writes the records of one worker, from any thread."""

    def __init__(self, answers: AnswerWriter) -> None:
        """Prepare the schema. Raises TopicsDiffer if it is not registered, and Unavailable."""
        self._answers = answers
        self._host = host_name()
        self._topic = answers.topics.instances
        self._said = False
        answers.codec.prepare(self._topic, Instance)

    def __call__(self, instance: Instance) -> None:
        told = replace(instance, worker=self._answers.name, host=self._host)
        try:
            self._answers.publisher.send(
                self._topic,
                told.box_id,
                self._answers.codec.encode(self._topic, told),
                headers=hot_headers("Instance", digest(told.box_id, told.kind)),
                refused=self._complain,
            )
            self._answers.publisher.push()
        except RollcallError as error:
            self._complain(error)

    def _complain(self, error: RollcallError | WorkFailed) -> None:
        if not self._said:
            self._said = True
            log.warning("instance_not_written", error=str(error))
