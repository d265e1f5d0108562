"""The assembly of each group's process, in plain code.

A group's module is imported when it is built, so only model servers and trainers import torch.
"""

import socket
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING

from rollcall.consumers.log.protocols import Log
from rollcall.consumers.loop.dead_letters import DeadLetters
from rollcall.consumers.loop.loop import Loop
from rollcall.consumers.loop.role import Role
from rollcall.consumers.loop.time_guard import TimeGuard
from rollcall.producers.publisher import Publisher
from rollcall.schemas.bounds import checked_scoring
from rollcall.schemas.codec import Codec
from rollcall.schemas.messages import Control, Event, ScoredTrajectory, Trajectory
from rollcall.schemas.topics import Topics

if TYPE_CHECKING:
    from rollcall.compose.settings import Settings
    from rollcall.consumers.environments.worker_boxes import WorkerBoxes
    from rollcall.consumers.environments.worker_hosts import WorkerHosts
    from rollcall.consumers.loop.answers import AnswerWriter
    from rollcall.consumers.loop.event_loop_thread import EventLoopThread
    from rollcall.consumers.rewards.async_scorers import AsyncScorers
    from rollcall.consumers.rewards.rewards import RewardsRole
    from rollcall.inference.engine import Engine
    from rollcall.sandbox.boxes.box_removal import Tell
    from rollcall.sandbox.boxes.leases import Leases
    from rollcall.sandbox.host import Processes
    from rollcall.sandbox.scorers import ScorerSpec


STEP_S = 60.0
"""The timeout of an environment's step, unless the environment sets its own."""


class WorkerFactory:
    """The parts that all workers of a process share: the log, the codec, the topics."""

    def __init__(
        self,
        log: Log,
        codec: Codec,
        topics: Topics,
        settings: "Settings",
        *,
        watched: bool = True,
        guarded: bool | None = None,
    ) -> None:
        self.log = log
        self.codec = codec
        self.topics = topics
        self.settings = settings
        self.watched = watched
        """True if this is the main thread of a separate process."""
        self.guarded = watched if guarded is None else guarded
        """True if users' code that does not return is interrupted; only a main thread can do it."""
        self._listener: socket.socket | None = None

    def agents(self, name: str, *, accept: bool = False) -> Loop:
        from rollcall.consumers.agents.outbox import Outbox
        from rollcall.consumers.agents.worker import AgentsRole, Capacity

        settings = self.settings.agents
        self.codec.prepare(self.topics.events, Event)
        self.codec.prepare(self.topics.trajectories, Trajectory)
        commands, trajectories = self.log.publisher(), self.log.publisher(bulk=True)
        dead_letters = self._letters(commands, "agents")
        role = AgentsRole(
            self.log,
            self.codec,
            self.topics,
            Outbox(name, self.codec, self.topics, commands, trajectories),
            dead_letters,
            capacity=Capacity(settings.max_live, settings.quota()),
            guard=self.guard("the program", settings.program_timeout_s),
            accept=accept,
        )
        return self._loop(role, [commands, trajectories], dead_letters, accept=accept)

    def models(
        self,
        name: str,
        engine: "Engine",
        *,
        accept: bool = False,
        thread: Executor | None = None,
        capacity: int | None = None,
    ) -> Loop:
        """Build a model server; `thread` reads weights, without one the loop's own does.

        `capacity` is the number of calls that the engine takes at once, if settings do not set it.
        """
        from rollcall.consumers.models.server import ModelsRole

        answers = self._answers(name)
        dead_letters = self._letters(answers.publisher, "models", engine.policy_id)
        at_once = self.settings.models.adopt_at_once
        if at_once:
            self.codec.prepare(self.topics.control, Control)
        role = ModelsRole(
            answers,
            dead_letters,
            engine,
            thread=thread,
            adopt_at_once=at_once,
            capacity=capacity or self.settings.models.max_batch,
        )
        return self._loop(role, [answers.publisher], dead_letters, accept=accept)

    def environments(self, name: str, *, accept: bool = False) -> Loop:
        from rollcall.consumers.environments.environments import EnvironmentsRole
        from rollcall.consumers.environments.instance_records import InstanceRecords
        from rollcall.consumers.environments.sessions.session_step import SessionTimes
        from rollcall.consumers.loop.event_loop_thread import EventLoopThread

        settings = self.settings.environments
        threads = settings.threads if self.watched else 0
        answers, loop_thread = self._answers(name), EventLoopThread(threaded=threads > 0)
        dead_letters = self._letters(answers.publisher, "environments")
        note = InstanceRecords(answers)
        boxes = self._boxes(name, loop_thread, note)
        role = EnvironmentsRole(
            answers,
            dead_letters,
            threads=threads,
            times=SessionTimes(lease_s=settings.lease_s),
            slots=settings.slots,
            loop_thread=loop_thread,
            hosts=self._hosts(loop_thread, boxes),
            boxes=boxes,
            note=note,
            guard=self.guard("the environment", STEP_S) if not threads else None,
        )
        return self._loop(role, [answers.publisher], dead_letters, accept=accept)

    def _answers(self, name: str) -> "AnswerWriter":
        """Return the publisher of answers for a worker that executes commands."""
        from rollcall.consumers.loop.answers import AnswerWriter

        self.codec.prepare(self.topics.events, Event)
        return AnswerWriter(name, self.log, self.codec, self.topics, self.log.publisher())

    def _boxes(self, name: str, loop_thread: "EventLoopThread", note: "Tell") -> "WorkerBoxes":
        """Return the boxes for the sessions of a worker, with leases in this state's directory."""
        from rollcall.consumers.environments.worker_boxes import WorkerBoxes

        settings = self.settings.environments
        return WorkerBoxes(
            loop_thread, self._leases(name), note, warm=settings.warm, box=settings.box
        )

    def _leases(self, name: str) -> "Leases":
        """Return a worker's leases, in the directory that all workers of this state share."""
        from rollcall.sandbox.boxes.leases import Leases, LeaseTimes

        settings = self.settings.environments
        times = LeaseTimes(settings.box_touch_s, settings.box_lapse_s, settings.box_reap_s)
        return Leases(self.settings.leases(), name, times)

    def _hosts(self, loop_thread: "EventLoopThread", boxes: "WorkerBoxes") -> "WorkerHosts":
        """Return the hosts of asynchronous environments; raises Refused if the port is taken.

        A configured port of the gateway is bound now, any other is chosen when it is needed.
        """
        from rollcall.consumers.environments.gateway.listening_socket import bind
        from rollcall.consumers.environments.worker_hosts import WorkerHosts

        host, port = (
            self.settings.environments.gateway_host,
            self.settings.environments.gateway_port,
        )
        listener = bind(host, port) if port else None
        hosts = WorkerHosts(
            loop_thread,
            listen=lambda: listener or bind(host),
            processes=self.agent_processes,
            objects=self.codec.objects,
            boxes=boxes,
        )
        if listener is not None:
            hosts.serve()
        return hosts

    def agent_processes(self) -> "Processes":
        """Return the starter of the agents of a worker's sessions."""
        from rollcall.sandbox.agents.agent_processes import AgentProcesses

        settings = self.settings
        return AgentProcesses(settings.installed_agents(), settings.state() / "agent-processes")

    def rewards(
        self,
        name: str,
        scorers: Sequence[str] | None = None,
        scoring_id: str | None = None,
        *,
        accept: bool = False,
    ) -> Loop:
        from rollcall.consumers.history.replay.scorings import begin_scoring

        publisher = self.log.publisher(bulk=True)
        role = self.scoring(name, publisher, scorers, scoring_id)
        begin_scoring(self.log, self.codec, self.topics, role.scoring_id)
        dead_letters = self._letters(publisher, "rewards", role.scoring_id)
        return self._loop(role, [publisher], dead_letters, accept=accept)

    def scoring(
        self,
        name: str,
        publisher: Publisher,
        scorers: Sequence[str] | None = None,
        scoring_id: str | None = None,
    ) -> "RewardsRole":
        """Return the part that scores trajectories and writes rewards, without a reading loop."""
        from rollcall.compose.teacher_scorer import scorer_spec
        from rollcall.consumers.rewards.rewards import RewardsRole
        from rollcall.sandbox.scorers import score

        settings = self.settings.rewards
        scoring_id = checked_scoring(scoring_id or settings.scoring_id)
        threads = self.settings.models.threads if self.watched else None
        specs = [scorer_spec(text, threads) for text in scorers or settings.scorers]
        self.codec.prepare(self.topics.scored, ScoredTrajectory)
        return RewardsRole(
            name,
            self.codec,
            self.topics,
            publisher,
            lambda trajectory, topic, partition, offset: score(
                trajectory,
                specs,
                scoring_id=scoring_id,
                source_topic=topic,
                source_partition=partition,
                source_offset=offset,
            ),
            scoring_id=scoring_id,
            guard=self.guard("the scorer", settings.scorer_timeout_s),
            waiting=self._async_scorers(name, specs),
        )

    def _async_scorers(self, name: str, specs: "Sequence[ScorerSpec]") -> "AsyncScorers":
        """Return the driver of asynchronous scorers; nothing is started until there is one."""
        from rollcall.consumers.loop.event_loop_thread import EventLoopThread
        from rollcall.consumers.rewards.async_scorers import AsyncScorers
        from rollcall.consumers.rewards.scoring_host import ScoringHosts

        settings = self.settings.rewards
        return AsyncScorers(
            specs,
            EventLoopThread(threaded=self.watched),
            ScoringHosts(
                box=settings.box,
                objects=self.codec.objects,
                leases=self._leases(name),
                timeout_s=settings.waiting_timeout_s,
            ),
            at_once=settings.boxes,
            timeout_s=settings.waiting_timeout_s,
        )

    def archive(self, name: str, directory: Path, span: int, *, accept: bool = False) -> Loop:
        from rollcall.consumers.tables.archive import ArchiveRole

        role = ArchiveRole(name, self.log, self.topics, directory, span=span)
        publisher = self.log.publisher()
        dead_letters = self._letters(publisher, "archive")
        return self._loop(role, [publisher], dead_letters, accept=accept)

    def guard(self, what: str, timeout_s: float) -> TimeGuard:
        """Return the guard that times calls of users' code, and interrupts them if possible."""
        guard = TimeGuard(what, timeout_s)
        if self.guarded:
            guard.watch()
        return guard

    def _letters(self, publisher: Publisher, *group: str) -> DeadLetters:
        return DeadLetters(
            publisher, self.topics, self.topics.group(*group), time.monotonic, self.log
        )

    def _loop(
        self,
        role: Role,
        publishers: Sequence[Publisher],
        dead_letters: DeadLetters,
        *,
        accept: bool = False,
    ) -> Loop:
        return Loop(self.log, role, self.codec, publishers, dead_letters, accept_truncation=accept)
