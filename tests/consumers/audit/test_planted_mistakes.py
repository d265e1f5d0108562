"""Workers with one planted mistake each: the audit finds the lost or doubled record."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from rollcall.consumers.agents.fold.journal import Journal
from rollcall.consumers.agents.fold.outstanding import PATIENCE
from rollcall.consumers.agents.outbox import Outbox
from rollcall.consumers.agents.owned_journal import CatchingUp
from rollcall.consumers.agents.watermark import Watermark
from rollcall.consumers.agents.worker import AgentsRole
from rollcall.consumers.audit.report import Report
from rollcall.consumers.log.protocols import Held, Record
from rollcall.consumers.loop.answers import AnswerWriter
from rollcall.consumers.loop.dead_letter_records import SkipOrder
from rollcall.consumers.loop.partition_progress import PartitionProgress
from rollcall.inference.scripted import ScriptedEngine
from rollcall.schemas.errors import TooLarge, WireError
from rollcall.schemas.messages import (
    CallFailed,
    EnvironmentStepped,
    Event,
    ModelAnswered,
    RolloutFinished,
    RolloutStarted,
)
from tests.support.journals import request
from tests.support.lake import crossing, walk
from tests.support.programs import ASKS
from tests.support.resent import send_again
from tests.support.rig import Rig, role_of, source_of
from tests.support.whole_log import audited

Place = tuple[str, str, int, str]
EVENTS, REQUESTS, TRAJECTORIES = "t.rollout.events", "t.rollout.requests", "t.trajectories"


def places(report: Report) -> list[Place]:
    return [(b.invariant, b.topic, b.offset, b.kind) for b in report.breaches]


def yes(call: Any) -> str:
    del call
    return "yes"


class Lived(Rig):
    """A few rollouts of one call each, with their ends and commits."""

    def __init__(self, *, partitions: int = 1, **agents: Any) -> None:
        super().__init__(partitions=partitions)
        self.crew = [self.agents(**agents), self.models(ScriptedEngine("p", yes)), self.rewards()]

    def live(self, rollouts: int = 3) -> "Lived":
        for number in range(rollouts):
            self.ask(request(f"r{number}", ASKS))
            self.work()
        return self

    def work(self) -> None:
        self.settle(*self.crew)
        for _ in range(2):
            self.commit(*self.crew)


def lived(**agents: Any) -> Lived:
    return Lived(**agents).live()


def test_correct_workers_leave_no_breach() -> None:
    report = audited(lived(), most_repeated=0, most_rewritten=0)

    assert (report.ok, report.ended) == (True, 3)


# One record costs one rollout


def is_answer_to(message: Any, rollout_id: str) -> bool:
    return (
        isinstance(message, Event)
        and isinstance(message.body, ModelAnswered)
        and message.rollout_id == rollout_id
    )


class DropsWhatRaises(AgentsRole):
    """Drops a rollout after an error in its fold, and continues."""

    def handle(self, batch: Iterable[tuple[Record, Any]]) -> None:
        super().handle(self._dropping(batch))

    def _dropping(self, batch: Iterable[tuple[Record, Any]]) -> Iterator[tuple[Record, Any]]:
        for record, message in batch:
            if is_answer_to(message, "r1"):
                self.owned[record.partition].journal.open.pop("r1")
            yield record, message


def test_a_dropped_rollout_after_a_fold_error_is_found() -> None:
    rig = lived(make=DropsWhatRaises)

    assert places(audited(rig, drained=False)) == [("I6", EVENTS, 3, "lost")]


class KeepsLargeEndsBack(Outbox):
    """Writes nothing for a rollout with an oversized trajectory."""

    def _trajectory(self, trajectory: Any, cause: Record | None) -> None:
        if trajectory.rollout_id != "r1":
            super()._trajectory(trajectory, cause)


def test_an_oversized_trajectory_never_written_is_found() -> None:
    rig = lived(make_outbox=KeepsLargeEndsBack)

    ends = [n for n, e in enumerate(rig.read(EVENTS, Event)) if isinstance(e.body, RolloutFinished)]
    assert places(audited(rig, drained=False)) == [("I8", EVENTS, ends[1], "lost")]


class KeepsLargeCommandsBack(Outbox):
    """Sends nothing for an oversized command, and reports nothing."""

    def _command(self, topic: str, command: Any, cause: Record | None) -> None:
        if command.rollout_id != "r1":
            super()._command(topic, command, cause)


def test_an_oversized_command_never_answered_is_found() -> None:
    rig = lived(make_outbox=KeepsLargeCommandsBack)
    for _ in range(4):
        rig.clock.pass_by(PATIENCE * 120 + 1)
        rig.work()

    report = audited(rig, drained=False)

    assert {place[0] for place in places(report)} == {"I3"}
    assert report.kinds.keys() == {"lost"}


class BuriesRequestsOnly(AgentsRole):
    """Buries unreadable requests without an entry in the journal."""

    def unreadable(self, record: Record, error: WireError) -> None:
        """Only the loop buries it."""


def test_an_unreadable_request_unknown_to_the_journal_is_found() -> None:
    rig = Rig()
    agents = rig.agents(make=BuriesRequestsOnly)
    rig.log.append(REQUESTS, b"k", b"rubbish", 0)
    rig.settle(agents)
    rig.commit(agents)

    assert places(audited(rig, drained=False)) == [("I6", REQUESTS, 0, "lost")]


def test_discarded_unreadable_bytes_are_found() -> None:
    rig = Rig()
    agents, models = rig.agents(), rig.models(ScriptedEngine("p", yes))
    for topic in (EVENTS, "t.model.calls.p"):
        rig.log.append(topic, b"k", b"rubbish", 0)
    models.dead_letters.bury = lambda record, error: setattr(record, "closed", True)
    rig.settle(agents, models)
    rig.commit(agents, models)

    report = audited(rig, drained=False)

    assert places(report) == [("I6", "t.model.calls.p", 0, "lost")]
    assert report.dead_letters == 1


def test_a_trajectory_with_a_dropped_score_is_found() -> None:
    rig = lived()
    role_of(rig.crew[2]).publish = lambda scored, record: None
    rig.ask(request("late", ASKS))
    rig.work()

    assert places(audited(rig, drained=False)) == [("I6", TRAJECTORIES, 3, "lost")]


def test_a_step_never_answered_by_its_dead_thread_is_found() -> None:
    rig = Rig()
    agents, models = rig.agents(), rig.models(ScriptedEngine("p", walk))
    environments = rig.environments()
    lose_first(role_of(environments).answers, EnvironmentStepped)
    rig.ask(crossing(0))
    for _ in range(4):
        rig.settle(agents, models, environments)
        rig.clock.pass_by(PATIENCE * 60 + 1)
    rig.settle(agents, models, environments)
    rig.commit(agents, models, environments)

    report = audited(rig, drained=False)

    assert [place for place in places(report) if place[0] == "I6"] == [
        ("I6", "t.env.steps", 0, "lost")
    ]


def lose_first(answers: AnswerWriter, kind: type) -> None:
    """Let a worker close the record of its first answer of a kind without writing it."""
    give, lost = answers.give, list[Any]()

    def some(command: Any, body: Any, cause: Record) -> None:
        if isinstance(body, kind) and not lost:
            lost.append(command)
            cause.closed = True
        else:
            give(command, body, cause)

    answers.give = some  # type: ignore[method-assign]


# The law at its edges


class TakesOverBlind(AgentsRole):
    """Starts at the commit instead of the low watermark: it misses open rollouts."""

    def assigned(self, held: Held, progress: PartitionProgress) -> int:
        start = super().assigned(held, progress)
        if held.topic != self.names.events or held.committed is None:
            return start
        owned = self.owned[held.partition]
        begin = Watermark(held.committed, owned.journal.last)
        owned.journal = Journal(held.partition, self.world, self.name, begin)
        owned.phase = CatchingUp()
        return progress.next_offset


def test_a_takeover_that_forgot_open_rollouts_is_found_during_work() -> None:
    rig = Rig()
    first = rig.agents("a1")
    for number in range(2):
        rig.ask(request(f"r{number}", ASKS))
    rig.settle(first)
    rig.commit(first)
    source_of(first).kill()
    second = rig.agents("a2", make=TakesOverBlind)
    rig.ask(request("r2", ASKS))
    rig.settle(second)
    rig.commit(second)

    report = audited(rig, drained=False)

    assert places(report) == [("I6", EVENTS, 0, "lost"), ("I6", EVENTS, 1, "lost")]


class BuriesAnAnswer(AgentsRole):
    """Does not know the schema of one journal entry, and reads on without it."""

    def handle(self, batch: Iterable[tuple[Record, Any]]) -> None:
        super().handle(self._reading_on(batch))

    def _reading_on(self, batch: Iterable[tuple[Record, Any]]) -> Iterator[tuple[Record, Any]]:
        for record, message in batch:
            if is_answer_to(message, "r0"):
                record.closed = True
            else:
                yield record, message


def test_a_journal_entry_skipped_by_one_reader_is_found() -> None:
    rig = Rig()
    agents = rig.agents(make=BuriesAnAnswer)
    models, rewards = rig.models(ScriptedEngine("p", yes)), rig.rewards()
    rig.ask(request("r0", ASKS, limits=replace(request("r").limits, max_tries=1)))
    for _ in range(2):
        rig.settle(agents, models, rewards)
        rig.clock.pass_by(PATIENCE * 120 + 1)
    rig.settle(agents, models, rewards)
    rig.commit(agents, models, rewards)

    report = audited(rig)

    assert [t.status for t in rig.trajectories()] == ["failed"]
    assert {"I5"} <= {place[0] for place in places(report)}
    assert (TRAJECTORIES, 0) in {(b.topic, b.offset) for b in report.breaches}


class RunsAgain(AgentsRole):
    """Starts every request, including repeated ones."""

    def __init__(self, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, **options)
        self.requests._asked_before = lambda record, rollout_id: None


def test_a_repeated_request_that_runs_again_is_found() -> None:
    rig = lived(make=RunsAgain)
    rig.ask(request("r1", ASKS))
    rig.work()

    starts = [
        n for n, e in enumerate(rig.read(EVENTS, Event)) if isinstance(e.body, RolloutStarted)
    ]
    assert places(audited(rig)) == [("I1", EVENTS, starts[-1], "doubled")]


def test_one_rollout_running_in_two_partitions_is_found() -> None:
    rig = Lived(make=RunsAgain, partitions=2)
    for partition in range(2):
        rig.ask(request("r", ASKS), partition)
        rig.work()

    report = audited(rig)

    assert [(b.invariant, b.place, b.kind) for b in report.breaches] == [
        ("I1", f"{EVENTS} 1@0", "doubled")
    ]


def test_a_replayed_or_foreign_keyed_request_is_no_breach() -> None:
    rig = Lived(make=RunsAgain)
    value = rig.codec.encode(REQUESTS, request("r", ASKS))
    rig.log.append(REQUESTS, b"r", value, 0)
    rig.work()
    send_again(rig.log, rig.topics.dead_letters, REQUESTS, b"r", value)
    rig.work()
    rig.log.append(REQUESTS, b"another key", value, 0)
    rig.work()

    assert len(rig.trajectories()) == 3
    assert audited(rig).ok


def test_a_requests_own_replay_header_does_not_excuse_a_second_start() -> None:
    rig = Lived(make=RunsAgain)
    value = rig.codec.encode(REQUESTS, request("r", ASKS))
    for headers in ([], [("dlq_replayed_from", b"t.dead.letters 0@0")]):
        rig.log.append(REQUESTS, b"r", value, 0, headers)
        rig.work()

    assert [b.kind for b in audited(rig).breaches] == ["doubled"]


def harm_scored(rig: Rig) -> Place:
    """A scorer killed by its watchdog wrote everything once more."""
    last = rig.log.all("t.trajectories.scored")[-1]
    _, offset = rig.log.append(last.topic, last.key, last.value, 0)
    return "I9", last.topic, offset, "doubled"


def harm_trajectories(rig: Rig) -> Place:
    """A reset agents group wrote existing trajectories again."""
    first = rig.log.all(TRAJECTORIES)[0]
    _, offset = rig.log.append(first.topic, first.key, first.value, 0)
    return "I9", first.topic, offset, "doubled"


@pytest.mark.parametrize("harm", [harm_scored, harm_trajectories])
def test_rewritten_records_are_counted_and_found_above_the_allowance(
    harm: Callable[[Rig], Place],
) -> None:
    rig = lived()

    where = harm(rig)

    assert audited(rig, most_rewritten=1).ok
    assert places(audited(rig, most_rewritten=0)) == [where]


class RefusesForNobody(AgentsRole):
    """Skips requests on an operator's order without any record of them."""

    def handle(self, batch: Iterable[tuple[Record, Any]]) -> None:
        super().handle(self._skipping(batch))

    def _skipping(self, batch: Iterable[tuple[Record, Any]]) -> Iterator[tuple[Record, Any]]:
        for record, message in batch:
            if record.topic == REQUESTS and record.offset == 1:
                record.closed = True
            else:
                yield record, message


def test_a_silently_skipped_request_is_found() -> None:
    rig = Lived(make=RefusesForNobody).live(2)

    assert places(audited(rig, drained=False)) == [("I6", REQUESTS, 1, "lost")]


def test_a_dropped_command_without_an_answer_is_found() -> None:
    rig = Rig()
    agents, models = rig.agents(), rig.models(ScriptedEngine("p", yes))
    lose_first(role_of(models).answers, ModelAnswered)
    rig.ask(request("r", ASKS))
    rig.settle(agents, models)
    rig.commit(agents, models)

    silently = audited(rig, drained=False)
    call = rig.log.all("t.model.calls.p")[0]
    headers = [("dlq_topic", call.topic.encode()), ("dlq_partition", b"0"), ("dlq_offset", b"0")]
    rig.log.append(rig.topics.dead_letters, call.key, call.value, 0, headers)

    assert places(silently) == [("I6", call.topic, 0, "lost")]
    assert audited(rig, drained=False).ok


@pytest.mark.parametrize(
    ("group", "first", "last", "ok"),
    [
        ("t.models.p", 0, 0, True),
        ("t.models.p", 0, 7, True),
        ("t.models.p", 1, 7, False),
        ("t.agents", 0, 0, False),
    ],
)
def test_a_missing_answer_is_excused_only_by_a_matching_skip(
    group: str, first: int, last: int, *, ok: bool
) -> None:
    rig = Rig()
    agents, models = rig.agents(), rig.models(ScriptedEngine("p", yes))
    lose_first(role_of(models).answers, ModelAnswered)
    rig.ask(request("r", ASKS))
    rig.settle(agents, models)
    rig.commit(agents, models)
    decided = SkipOrder(group, "t.model.calls.p", 0, first, last, "it hangs", "ann")

    rig.log.append(rig.topics.dead_letters, None, None, 0, decided.headers())

    assert audited(rig, drained=False).ok is ok


def test_a_command_skipped_and_buried_by_its_group_needs_no_answer() -> None:
    rig = Rig()
    decided = SkipOrder("t.models.p", "t.model.calls.p", 0, 0, 0, "it hangs", "ann")
    rig.log.append(rig.topics.dead_letters, None, None, 0, decided.headers())
    agents, models = rig.agents(), rig.models(ScriptedEngine("p", yes))
    rig.ask(request("r", ASKS))
    rig.settle(agents, models)
    rig.commit(agents, models)

    assert rig.events(ModelAnswered) == []
    assert len(rig.log.all(rig.topics.dead_letters)) == 2
    assert audited(rig, drained=False).ok


def test_a_forgotten_oversized_answer_is_found() -> None:
    rig = Rig()
    agents, models = rig.agents(), rig.models(ScriptedEngine("p", yes))
    answers = role_of(models).answers
    write = answers._write

    def swallows(command: Any, body: Any, cause: Record) -> None:
        try:
            raise TooLarge(EVENTS, 2_000_000, 1_000_000)
        except TooLarge:
            if command.rollout_id != "r1":
                write(command, body, cause)

    answers._write = swallows
    for number in range(3):
        rig.ask(request(f"r{number}", ASKS))
    rig.settle(agents, models)
    rig.commit(agents, models)

    assert rig.events(CallFailed) == []
    assert places(audited(rig, drained=False)) == [("I6", "t.model.calls.p", 1, "lost")]


@pytest.mark.parametrize(
    "config",
    ["{", "[]", "null", '{"recorded": 5}', '{"recorded": [{}]}', '{"recorded": [{"kind": 7}]}',
     '{"recorded": [], "program": "fork", "agent_config": 7, "rng_seed": 1, "turn": 0}'],
)  # fmt: skip
def test_a_fork_with_an_invalid_config_is_audited_normally(config: str) -> None:
    rig = Lived()
    asked = replace(request("r", "fork"), agent_config=config, parent_rollout_id="p")
    rig.ask(asked)
    rig.work()

    (ended,) = rig.trajectories()
    rig.write(TRAJECTORIES, "r", replace(ended, request=asked), 0)
    assert audited(rig, scorings=()).accepted == 1
