"""The outputs of the agents group: commands, entries of the journal, trajectories.

An output that cannot be written ends its rollout alone. One that cannot be encoded now, because the
registry or object store is unavailable, is sent later; the record that caused it waits for that.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import structlog

from rollcall.consumers.agents.fold.commands import Command
from rollcall.consumers.agents.fold.journal import START
from rollcall.consumers.agents.fold.rollout import Output
from rollcall.consumers.loop.answers import SendLater, event_of
from rollcall.producers.control import retire_control
from rollcall.producers.publisher import Cause, Publisher
from rollcall.schemas.bounds import check_sampling
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import (
    FailureCode,
    NoTopic,
    Refused,
    TooLarge,
    TopicsDiffer,
    Unavailable,
    Unfit,
    WireError,
    WorkFailed,
)
from rollcall.schemas.headers import Headers, full_headers, hot_headers
from rollcall.schemas.ids import digest
from rollcall.schemas.messages import (
    AttemptStarted,
    CallFailed,
    EnvironmentStep,
    Event,
    ModelCall,
    RolloutFinished,
    RolloutRefused,
    Sampling,
    Trajectory,
)
from rollcall.schemas.reduced_trajectory import reduced_forms, write_reduced_form
from rollcall.schemas.topics import POLICY_ID, Topics
from rollcall.schemas.untrusted_text import clean_text, describe_exception

REASON_CHARS = 2000
"""The kept length of a reason in the journal."""
COURTESY = ("close", "abort")
PROCESS = (Unfit, Unavailable)
"""Errors that concern all rollouts alike; any other error ends only its own rollout."""

log = structlog.get_logger()


class Outbox:
    """Writes the effects of rollouts, each as an output of the record that caused it."""

    def __init__(
        self,
        name: str,
        codec: Codec,
        topics: Topics,
        commands: Publisher,
        trajectories: Publisher,
    ) -> None:
        self.name = name
        self.codec = codec
        self.topics = topics
        self.commands = commands
        self.trajectories = trajectories
        self._unsent: SendLater[tuple[Output, int, Cause | None]] = SendLater("sending_waits")
        self._unwritten: dict[int, list[tuple[Event, Cause | None]]] = {}
        """Events by partition that wait to be written in order: the
        chain of requests has no gap."""
        self._call_topics: dict[str, str] = {}
        """The topic of each known policy id."""
        self._in_bounds: Sampling | None = None
        """The last sampling that passed the check: most calls have the same one."""

    def carry_out(self, outputs: Iterable[Output], partition: int, cause: Cause | None) -> None:
        """Write the effects of one rollout; an effect that cannot be written
        ends that rollout alone."""
        for output in outputs:
            try:
                self._send(output, partition, cause)
            except Unavailable as error:
                self._send_later(output, partition, cause, error)
            except Unfit:
                raise
            except Exception as error:
                if isinstance(output, Trajectory):
                    raise  # nothing is left to leave out
                log.warning(
                    "rollout_broken", rollout_id=output.rollout_id, error=describe_exception(error)
                )
                self._write_bare_end(output, error, partition, cause)

    def retire_control_record(self, key: bytes) -> None:
        """Delete a record of `control` that has had its effect; no record waits for that."""
        retire_control(self.commands, self.topics, key)

    def retry(self) -> None:
        """Send again what could not be encoded because the registry or store was unavailable."""
        for partition, events in list(self._unwritten.items()):
            del self._unwritten[partition]
            for event, cause in events:
                if not self.write(event, partition, cause):
                    self._write_refusal(event, partition, cause)
                settle_pending_output(cause)
        for output, partition, cause in self._unsent.drain():
            self.carry_out([output], partition, cause)
            settle_pending_output(cause)

    def write(self, event: Event, partition: int, cause: Cause | None = None) -> bool:
        """Write an entry of the journal; False if it is too large for its topic.

        If it cannot be encoded now it is written later, and all later entries after it.
        """
        try:
            if partition in self._unwritten:
                self._write_later(event, partition, cause)
                return True
            self.commands.send(
                self.topics.events,
                event.rollout_id,
                self.codec.encode(self.topics.events, event),
                partition=partition,
                headers=hot_headers(type(event.body).__name__, event.command_id),
                cause=cause,
            )
        except TooLarge:
            return False
        except Unavailable as error:
            self._write_later(event, partition, cause)
            log.warning("write_retried_later", partition=partition, error=str(error))
        return True

    def _write_later(self, event: Event, partition: int, cause: Cause | None) -> None:
        add_pending_output(cause)
        self._unwritten.setdefault(partition, []).append((event, cause))

    def _write_refusal(self, event: Event, partition: int, cause: Cause | None) -> None:
        """Write a refusal or an end in place of an event that is too large for the journal."""
        body = event.body
        error = WireError(f"its {type(body).__name__} is too large for the journal")
        if not isinstance(body, START):
            self._write_bare_end(event, error, partition, cause)
            return
        why: tuple[str, str] = FailureCode.TOO_LARGE, str(error)
        if isinstance(body, RolloutRefused):
            why = body.code, body.reason
        place = body.from_offset, body.request_offset
        bare = RolloutRefused(*why, *place, None, body.request_epoch, body.requests_id)
        self.write(replace(event, body=bare), partition, cause)

    def _write_bare_end(
        self, output: Command | Event, error: Exception, partition: int, cause: Cause | None
    ) -> None:
        """End a rollout one of whose effects cannot be written, with a minimal event."""
        if not isinstance(output, Event) and output.kind in COURTESY:
            return
        begins = isinstance(output, Event) and isinstance(output.body, AttemptStarted)
        reason = describe_exception(error, REASON_CHARS)
        body = RolloutFinished("failed", FailureCode.BROKEN, reason)
        end = Event.decision(output.rollout_id, output.attempt - begins, self.name, body)
        self.write(end, partition, cause)

    def _send(self, output: Output, partition: int, cause: Cause | None) -> None:
        if isinstance(output, ModelCall):
            self._command(self._calls_topic(output.policy_id), output, cause)
        elif isinstance(output, EnvironmentStep):
            self._command(self.topics.steps, output, cause)
        elif isinstance(output, Trajectory):
            self._trajectory(output, cause)
        elif not self.write(output, partition, cause):
            msg = f"its {type(output.body).__name__} is too large for the journal"
            raise WireError(msg)

    def _send_later(
        self, output: Output, partition: int, cause: Cause | None, error: Unavailable
    ) -> None:
        add_pending_output(cause)
        self._unsent.add((output, partition, cause), error, kind=type(output).__name__)

    def _calls_topic(self, policy_id: str) -> str:
        topic = self._call_topics.get(policy_id)
        if topic is None:
            topic = self.topics.calls(policy_id)
            if POLICY_ID.fullmatch(policy_id):
                self._call_topics[policy_id] = topic
        return topic

    def _command(self, topic: str, command: Command, cause: Cause | None) -> None:
        try:
            if isinstance(command, ModelCall):
                self._check_call(command)
            value = self.codec.encode(topic, command)
            self.commands.send(
                topic,
                command.rollout_id,
                value,
                headers=hot_headers(type(command).__name__, command.command_id),
                cause=cause,
                refused=partial(self._turned_away, command, cause),
            )
        except TopicsDiffer:
            msg = f"no topic {topic:.300}: unknown policy"
            self._fail(command, CallFailed(FailureCode.UNKNOWN_POLICY, msg, False), cause)
        except TooLarge as error:
            self._fail(command, CallFailed(error.code, str(error), False), cause)
        except Refused as error:
            self._fail(command, CallFailed(FailureCode.OUT_OF_BOUNDS, str(error), False), cause)
        except WireError as error:
            reason = clean_text(str(error), REASON_CHARS)
            self._fail(command, CallFailed(FailureCode.UNWRITABLE, reason, False), cause)
        except Unavailable as error:
            self._send_later(command, command.answer_partition, cause, error)

    def _check_call(self, call: ModelCall) -> None:
        """Raise TopicsDiffer for an unknown policy, Refused for a sampling out of bounds."""
        if call.policy_id not in self._call_topics:
            raise TopicsDiffer(call.policy_id)
        if call.sampling != self._in_bounds:
            check_sampling(call.sampling)
            self._in_bounds = call.sampling

    def _turned_away(self, command: Command, cause: Cause | None, error: WorkFailed) -> None:
        """Answer a command that the broker refused after it was sent."""
        unknown = isinstance(error, NoTopic) and isinstance(command, ModelCall)
        code = FailureCode.UNKNOWN_POLICY if unknown else error.code
        self._fail(command, CallFailed(code, str(error), False), cause)

    def _fail(self, command: Command, body: CallFailed, cause: Cause | None) -> None:
        """Answer a command that cannot be sent; a close or abort is dropped."""
        if command.kind not in COURTESY:
            self.write(event_of(command, body, self.name), command.answer_partition, cause)

    def _trajectory(self, trajectory: Trajectory, cause: Cause | None) -> None:
        """Write a trajectory, or as much of it as fits; its code and reason say why it is less."""
        try:
            self._send_trajectory(trajectory, cause)
        except PROCESS:
            raise
        except Exception as error:
            code = FailureCode.TOO_LARGE if isinstance(error, TooLarge) else FailureCode.UNWRITABLE
            reason = clean_text(str(error), REASON_CHARS)
            explained = replace(trajectory, code=code, reason=reason)
            write_reduced_form(explained, lambda bare: self._send_trajectory(bare, cause), error)

    def _send_barest(self, trajectory: Trajectory, cause: Cause | None, error: WorkFailed) -> None:
        """Write a minimal form of a trajectory that its topic refused."""
        *_, barest = reduced_forms(replace(trajectory, code=error.code, reason=str(error)))
        self._send_trajectory(barest, cause, last=True)

    def _send_trajectory(
        self, trajectory: Trajectory, cause: Cause | None, *, last: bool = False
    ) -> None:
        self.trajectories.send(
            self.topics.trajectories,
            trajectory.rollout_id,
            self.codec.encode(self.topics.trajectories, trajectory),
            partition=trajectory.journal_partition,
            headers=self._headers(trajectory),
            cause=cause,
            refused=None if last else partial(self._send_barest, trajectory, cause),
        )

    def _headers(self, trajectory: Trajectory) -> Headers:
        request, rollout_id = trajectory.request, trajectory.rollout_id
        ce_id = digest(rollout_id, trajectory.attempt).hex()
        source = f"{self.name}/{request.run_id if request else ''}"
        return full_headers("Trajectory", ce_id, source, rollout_id, rollout_id)


def add_pending_output(cause: Cause | None) -> None:
    """Make a record wait for an output that is sent later."""
    if cause is not None:
        cause.sent += 1


def settle_pending_output(cause: Cause | None) -> None:
    """Note that the output was sent; the record waits for its acks instead."""
    if cause is not None:
        cause.acked += 1
