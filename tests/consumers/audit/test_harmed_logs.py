"""Silent losses and duplicates: each is found at its offset, and no other breach is."""

from collections import deque
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from random import Random
from typing import Any

import pytest

from rollcall.consumers.agents.fold.outstanding import PATIENCE
from rollcall.consumers.agents.outbox import Outbox
from rollcall.consumers.agents.watermark import Watermark
from rollcall.consumers.agents.worker import AgentsRole
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.answers import Answer
from rollcall.consumers.loop.finished_offsets import above_commit
from rollcall.consumers.loop.partition_progress import PartitionProgress
from rollcall.consumers.loop.scoring_retirement import retired_word
from rollcall.inference.scripted import ScriptedEngine
from rollcall.schemas.errors import WireError
from rollcall.schemas.messages import (
    CallFailed,
    DeadlinePassed,
    EnvironmentStep,
    Event,
    ModelAnswered,
    ModelCall,
    PolicyVersion,
    RolloutStarted,
    Sampling,
    ScoredTrajectory,
    TrainStep,
    TrajectoryRef,
    WeightsFile,
)
from tests.support import programs
from tests.support.journals import request
from tests.support.lake import crossing, walk
from tests.support.programs import ASKS, EXAMPLES, TWICE
from tests.support.rig import Rig, role_of, source_of
from tests.support.tiers import cases
from tests.support.whole_log import Whole, audited, found


def yes(call: ModelCall) -> str:
    del call
    return "yes"


def places(report: Any) -> list[tuple[str, str, int]]:
    return [(b.invariant, b.topic, b.offset) for b in report.breaches]


# Commands: answered, and as they were meant


def forgetful(rig: Rig, forgets: Callable[[ModelCall], bool]) -> Any:
    """A model server that finishes some calls without an answer."""
    models = rig.models(ScriptedEngine("p", yes))
    answers = role_of(models).answers
    give = answers.give

    def maybe(call: ModelCall, body: Answer, cause: Record) -> None:
        if forgets(call):
            cause.closed = True
        else:
            give(call, body, cause)

    answers.give = maybe
    return models


def test_an_unanswered_command_breaks_i6_despite_its_passed_deadline() -> None:
    rig = Rig()
    agents, rewards = rig.agents(), rig.rewards()
    models = forgetful(rig, lambda call: call.tries == 0 and call.rollout_id == "r1")
    for number in range(3):
        rig.ask(request(f"r{number}", ASKS))
    for _ in range(2):
        rig.settle(agents, models, rewards)
        rig.clock.pass_by(PATIENCE * 120 + 1)
    rig.settle(agents, models, rewards)
    rig.commit(agents, models, rewards)

    report = audited(rig)

    assert {t.status for t in rig.trajectories()} == {"finished"}
    assert places(report) == [("I6", "t.model.calls.p", 1)]
    assert report.lost == 1


def test_a_workers_late_answer_counts_as_an_answer() -> None:
    rig = Rig()
    agents, rewards = rig.agents(), rig.rewards()
    rig.ask(request("r", ASKS))
    rig.settle(agents)
    rig.clock.pass_by(PATIENCE * 120 + 1)
    rig.settle(agents)
    models = rig.models(ScriptedEngine("p", yes))
    rig.settle(agents, models, rewards)
    rig.commit(agents, models, rewards)

    codes = [e.body.code for e in rig.events(CallFailed)]  # type: ignore[union-attr]

    assert codes == ["deadline", "expired"]
    assert audited(rig).ok


def test_a_cancelled_call_needs_no_answer() -> None:
    rig = Rig()
    agents, rewards = rig.agents(), rig.rewards()
    models = forgetful(rig, lambda call: True)
    rig.ask(request("r", ASKS))
    rig.settle(agents, models, rewards)
    rig.order("cancel", rollout_id="r")
    rig.clock.pass_by(1)
    rig.settle(agents, models, rewards)
    rig.commit(agents, models, rewards)

    assert [call.kind for call in rig.read("t.model.calls.p", ModelCall)] == ["sample", "abort"]
    assert audited(rig).ok


def test_a_command_marked_finished_in_commit_metadata_must_be_answered() -> None:
    rig = Rig()
    agents, models = rig.agents(), forgetful(rig, lambda call: call.rollout_id == "r1")
    for number in range(2):
        rig.ask(request(f"r{number}", ASKS))
    rig.settle(agents, models)
    record = Record("t.model.calls.p", 0, 1, b"r1", b"", 0)
    record.closed = True
    progress = PartitionProgress(record.topic, 0, 0, 0, 2, deque([record]))
    rig.log.group("t.models.p").committed[record.topic, 0] = 0, above_commit(progress)

    report = audited(rig, drained=False)

    assert places(report) == [("I6", "t.model.calls.p", 1)]


def conversation() -> Rig:
    """One call with a prefix of tokens, and one step, among the rest."""
    rig = Rig()
    loops = [
        rig.agents(), rig.models(ScriptedEngine("p", walk)), rig.environments(), rig.rewards(),
    ]  # fmt: skip
    rig.ask(crossing(0))
    rig.settle(*loops)
    rig.commit(*loops)
    return rig


ALTERED_CALLS: dict[str, dict[str, Any]] = {
    "tokens": {"prefix_ids": b"\0" * 4, "prefix_length": 1},
    "messages": {"messages": ()},
    "sampling": {"sampling": Sampling(temperature=0.5)},
    "seed": {"seed": 1},
    "policy": {"policy_id": "q"},
    "sequence": {"sequence": 3},
    "tools": {"tools": "[]"},
    "version": {"min_policy_version": 5},
    "place": {"position": 70},
    "body digest": {"body_digest": b"another"},
    "partition": {"answer_partition": 1},
}
ALTERED_STEPS: dict[str, dict[str, Any]] = {
    "environment": {"environment": "another"},
    "configuration": {"environment_config": "{}"},
    "session": {"session": "another"},
    "seed": {"seed": 77},
    "index": {"index": 9},
    "action": {"action": "another"},
    "history": {"history": ("another",)},
    "kind": {"kind": "reset"},
}


@pytest.mark.parametrize("altered", ALTERED_CALLS)
def test_an_altered_call_breaks_i3(altered: str) -> None:
    rig = conversation()

    offset = alter(rig, rig.topics.calls("p"), ModelCall, **ALTERED_CALLS[altered])

    assert places(audited(rig)) == [("I3", "t.model.calls.p", offset)]


@pytest.mark.parametrize("altered", ALTERED_STEPS)
def test_an_altered_step_breaks_i3(altered: str) -> None:
    rig = conversation()

    offset = alter(rig, rig.topics.steps, EnvironmentStep, **ALTERED_STEPS[altered])

    assert places(audited(rig)) == [("I3", "t.env.steps", offset)]


def alter(rig: Rig, topic: str, message: type, **fields: Any) -> int:
    """Alter the last command of a topic; return its offset."""
    held = rig.log.topics[topic][0]
    last = rig.log.all(topic)[-1]
    value = rig.codec.encode(topic, replace(rig.codec.decode(last.value, message), **fields))
    held.records[last.offset] = last.key, value, last.timestamp_ms, last.headers
    return last.offset


def test_a_deadline_moved_by_a_quota_is_no_alteration() -> None:
    rig = conversation()

    alter(rig, rig.topics.calls("p"), ModelCall, not_after_ms=5)

    assert audited(rig).ok


def test_overwritten_prefix_tokens_break_i3_at_every_call_with_a_prefix() -> None:
    rig = Rig()
    rewards, models = rig.rewards(), rig.models(ScriptedEngine("p", yes))
    agents = rig.agents(make_outbox=Overwrites)
    for number in range(3):
        rig.ask(request(f"r{number}", TWICE))
    rig.settle(agents, models, rewards)
    rig.commit(agents, models, rewards)

    assert places(audited(rig)) == [("I3", "t.model.calls.p", offset) for offset in (3, 4, 5)]


@pytest.fixture
def named() -> tuple[Rig, bytes]:
    """A rollout with a last call that names its prefix, and the tokens of the prefix."""
    rig = Rig()
    loops = rig.agents(), rig.models(ScriptedEngine("p", lambda call: "word " * 300)), rig.rewards()
    rig.ask(request("r", TWICE, sampling=Sampling(max_tokens=2000)))
    rig.settle(*loops)
    rig.commit(*loops)
    (first, last) = rig.read("t.model.calls.p", ModelCall)
    answer: Any = rig.events(ModelAnswered)[0].body
    assert (first.prefix_length, last.prefix_ids) == (0, None)
    return rig, answer.added_ids + answer.token_ids


def test_a_prefix_may_be_named_or_sent_whole(
    named: tuple[Rig, bytes],
) -> None:
    rig, ids = named
    assert audited(rig).ok

    alter(rig, rig.topics.calls("p"), ModelCall, prefix_ids=ids, prefix_digest=b"")

    assert audited(rig).ok


def test_a_wrong_prefix_digest_breaks_i3(named: tuple[Rig, bytes]) -> None:
    rig, _ = named

    offset = alter(rig, rig.topics.calls("p"), ModelCall, prefix_digest=bytes(16))

    assert places(audited(rig)) == [("I3", "t.model.calls.p", offset)]


class Overwrites(Outbox):
    """Sends zeros where a call's tokens belong."""

    def _command(self, topic: str, command: Any, cause: Record | None) -> None:
        if isinstance(command, ModelCall) and command.prefix_ids:
            command = replace(command, prefix_ids=bytes(len(command.prefix_ids)))
        super()._command(topic, command, cause)


# Training


def test_a_step_without_a_record_of_its_parent_breaks_i7() -> None:
    whole = Whole(6)
    whole.train(4, 4, 5, parent=3)

    report = audited(whole)

    assert places(report) == [("I7", "t.train.steps", 2)]
    assert report.lost == 1
    assert "made from version 3, whose step has no record" in report.breaches[0].text


def test_double_training_behind_a_missing_step_is_found(whole: Whole) -> None:
    whole.train(4, 0, 1, parent=3)

    report = audited(whole)

    assert places(report) == [("I7", "t.train.steps", 2)] * 3
    assert (report.lost, report.doubled) == (1, 2)


def test_a_missing_step_below_the_read_range_is_no_breach(whole: Whole) -> None:
    whole.log.delete_before(whole.topics.train_steps, 0, 1)

    assert audited(whole).ok


def test_one_version_number_in_two_runs_of_a_policy_breaks_i7(whole: Whole) -> None:
    step = whole.read(whole.topics.train_steps, TrainStep)[-1]
    other = replace(step, run_id="other", step=1, parent=0, trajectories=())
    whole.write(whole.topics.train_steps, "p", other)

    report = audited(whole)

    assert places(report) == [("I7", "t.train.steps", 2)]
    assert "one of run 'run' at 0@1" in report.breaches[0].text


@pytest.mark.parametrize("asked", [{"run_id": "other"}, {"purpose": "evaluate"}])
def test_training_on_rollouts_of_other_runs_or_purposes_breaks_i7(asked: dict[str, str]) -> None:
    whole = Whole()
    whole.ask(replace(crossing(4, "g2"), **{"run_id": "run", "purpose": "train", **asked}))
    whole.settle(*whole.loops)
    whole.train(3, 4)

    assert places(audited(whole)) == [("I7", "t.train.steps", 2)]


@pytest.mark.parametrize(
    "wrong", [{"partition": -1}, {"partition": 1 << 20}, {"offset": -7}, {"topic": "elsewhere"}]
)
def test_a_reference_to_a_nonexistent_place_breaks_i7(whole: Whole, wrong: dict[str, Any]) -> None:
    ref = replace(TrajectoryRef("t.trajectories.scored", 0, 3, "r3", 1), **wrong)
    whole.write(whole.topics.train_steps, "p", TrainStep("p", "run", 3, 3, 2, (ref,), {}))

    assert places(audited(whole)) == [("I7", "t.train.steps", 2)]


# Versions that are announced


def announce(whole: Whole, version: int, step: int, parent: int, run: str = "run") -> None:
    file = WeightsFile("", "", 0, "", -1)
    record = PolicyVersion("p", version, parent, run, step, "d", file, b"\0" * 4, b"")
    whole.write(whole.topics.versions, "p", record)


def test_an_announced_version_of_its_own_step_is_no_breach(whole: Whole) -> None:
    announce(whole, 0, 0, -1)
    announce(whole, 1, 1, 0)
    announce(whole, 2, 2, 1)

    assert audited(whole).ok


def test_an_announced_version_without_its_step_breaks_i7(whole: Whole) -> None:
    announce(whole, 3, 3, 2)
    announce(whole, 2, 2, 1, run="other")

    report = audited(whole, drained=False)

    assert places(report) == [("I7", "t.policy.versions", 0), ("I7", "t.policy.versions", 1)]
    assert "step 3 of run 'run', which made it, has no record" in report.breaches[0].text
    assert report.lost == 2


def test_an_announced_version_that_differs_from_its_step_breaks_i7(whole: Whole) -> None:
    whole.train(3, parent=2, weights_digest="e")
    announce(whole, 2, 2, 0)
    announce(whole, 3, 3, 2)

    assert places(audited(whole)) == [
        ("I7", "t.policy.versions", 0),
        ("I7", "t.policy.versions", 1),
    ]


# Retention


def test_requests_removed_by_retention_before_their_start_break_i1(whole: Whole) -> None:
    for number in range(3):
        whole.ask(crossing(10 + number, "g9"))
    whole.log.delete_before(whole.topics.requests, 0, 7)

    for drained in (True, False):
        report = audited(whole, drained=drained)
        assert places(report) == [("I1", "t.rollout.requests", 4)]
        assert "requests 4..6 of this partition were taken by retention" in report.breaches[0].text


def test_requests_removed_by_retention_after_their_start_are_no_breach(whole: Whole) -> None:
    whole.log.delete_before(whole.topics.requests, 0, 4)

    assert audited(whole).ok


def test_unread_requests_removed_by_retention_break_i1() -> None:
    whole = Whole(0)
    for number in range(3):
        whole.ask(crossing(number, "g"))
    whole.log.delete_before(whole.topics.requests, 0, 3)

    assert places(audited(whole)) == [("I1", "t.rollout.requests", 0)]


def test_unscored_trajectories_break_i8_even_without_any_scoring(
    whole: Whole,
) -> None:
    for offset in range(4):
        whole.lose(whole.topics.scored, offset)
    whole.log.topics[whole.topics.train_steps][0].records.clear()
    del whole.log.groups["t.rewards.s"]

    report = audited(whole)

    assert places(report) == [("I8", "t.trajectories", offset) for offset in range(4)]


# Foreign records


@pytest.mark.parametrize("partition", [-1, 7, 1 << 20, -(1 << 31), (1 << 31) - 1])
@pytest.mark.parametrize("offset", [-1, 1 << 62])
def test_a_foreign_trajectory_of_a_missing_place_breaks_only_i8(
    whole: Whole, partition: int, offset: int
) -> None:
    (one, *_) = whole.trajectories()
    foreign = replace(one, rollout_id="x", journal_partition=partition, last_offset=offset)
    scored = whole.read(whole.topics.scored, ScoredTrajectory)[0]
    whole.write(whole.topics.trajectories, "x", foreign, 0)
    whole.write(whole.topics.scored, "x", replace(scored, trajectory=foreign))

    report = audited(whole, drained=False)

    assert places(report) == [("I8", "t.trajectories", 4), ("I8", "t.trajectories.scored", 4)]


def test_a_program_that_cannot_be_imported_is_no_breach(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    loops = [rig.agents(), rig.models(ScriptedEngine("p", yes)), rig.rewards()]
    rig.ask(request("r", EXAMPLES))
    rig.settle(*loops)
    rig.commit(*loops)
    here = audited(rig)
    monkeypatch.delattr(programs, "shows_examples")

    elsewhere = audited(rig)

    assert (here.ok, here.not_run_again) == (True, 0)
    assert (elsewhere.ok, elsewhere.not_run_again) == (True, 1)


# Takeovers


def test_an_open_rollout_unknown_to_the_commit_breaks_i6_during_work() -> None:
    rig = two_open()

    rig.log.group("t.agents").committed[rig.topics.events, 0] = 3, Watermark(2, 1).write()
    report = audited(rig, drained=False)

    assert places(report) == [("I6", "t.rollout.events", 0), ("I6", "t.rollout.events", 1)]
    assert report.lost == 2


def two_open() -> Rig:
    """Two rollouts that wait for a model, started at offsets 0 and 1; a third one ended."""
    rig = Rig()
    agents = rig.agents()
    for number in range(2):
        rig.ask(request(f"r{number}", ASKS))
    rig.ask(request("none", "no program"))
    rig.settle(agents)
    rig.commit(agents)
    source_of(agents).kill()
    return rig


@pytest.mark.parametrize(
    "word", [Watermark(0, None), Watermark(2, 1, (0, 1)), Watermark(1, 0, (0,))]
)
def test_a_commit_that_names_all_open_rollouts_is_sound(word: Watermark) -> None:
    rig = two_open()

    rig.log.group("t.agents").committed[rig.topics.events, 0] = 3, word.write()

    assert audited(rig, drained=False).ok


@pytest.mark.parametrize(("last", "kind"), [(0, "doubled"), (2, "lost")])
def test_a_commit_with_a_wrong_last_request_breaks_i6(last: int, kind: str) -> None:
    rig = two_open()

    word = Watermark(2, last, (0, 1)).write()
    rig.log.group("t.agents").committed[rig.topics.events, 0] = 3, word
    report = audited(rig, drained=False)

    assert places(report) == [("I6", "t.rollout.events", 2)]
    assert report.breaches[0].kind == kind


def test_an_open_rollout_may_lie_below_a_later_commit() -> None:
    rig = two_open()
    until_ms = int(rig.clock() * 1000)
    rig.clock.pass_by(60)
    agents, models = rig.agents(), rig.models(ScriptedEngine("p", yes))
    rig.settle(agents, models)
    rig.commit(agents, models)

    report = audited(rig, drained=False, until_ms=until_ms)

    assert (report.open, found(report)) == (2, set())


def test_a_rollout_open_far_past_its_deadline_breaks_i1() -> None:
    rig = Rig()
    agents = rig.agents(make=ForgetsDeadlines)
    limits = request("r").limits
    rig.ask(request("r", ASKS, limits=replace(limits, rollout_timeout_s=600.0)))
    rig.settle(agents)
    rig.commit(agents)
    lately = audited(rig, drained=False)
    for number in range(20):
        rig.clock.pass_by(120)
        rig.ask(request(f"none{number}", "no program"))
        rig.settle(agents)
    rig.commit(agents)

    report = audited(rig, drained=False)

    assert lately.ok
    assert places(report) == [("I1", "t.rollout.events", 0)]
    assert report.breaches[0].kind == "lost"


class ForgetsDeadlines(AgentsRole):
    """Ends no rollout past its deadline."""

    def _deadlines(self) -> None:
        pass


def test_a_rollout_of_agents_stopped_overnight_is_not_lost() -> None:
    rig = two_open()
    rig.clock.pass_by(12 * 3600)
    rig.ask(request("late", ASKS))
    other = Event.decision("late", 1, "a2", RolloutStarted(request("late", ASKS), 3, 3))
    rig.write(rig.topics.events, "late", other, 0)

    assert audited(rig, drained=False).ok
    assert rig.events(DeadlinePassed) == []


# Scorings


def test_a_scoring_tried_once_and_named_by_no_request_owes_nothing(whole: Whole) -> None:
    tried_once(whole)

    assert audited(whole).ok


def test_a_named_scoring_owes_scores_unless_only_others_are_expected() -> None:
    whole = Whole(4, scorings=("s", "tried"))
    tried_once(whole)

    assert found(audited(whole)) == {"I8"}
    assert audited(whole, scorings=["s"]).ok


def tried_once(whole: Whole) -> None:
    """Scorers were started under another id and stopped again."""
    whole.commit_by_hand("t.rewards.tried", whole.topics.trajectories, 0)


def test_an_expected_scoring_that_never_ran_owes_every_score(whole: Whole) -> None:
    report = audited(whole, scorings=["s", "never"])

    assert {b.invariant for b in report.breaches} == {"I8"}
    assert len(report.breaches) == 4


def test_a_retired_scoring_owes_nothing_until_it_is_resumed() -> None:
    whole = Whole(4, scorings=("s", "tried"))
    tried_once(whole)
    group, topic = whole.log.group("t.rewards.tried"), whole.topics.trajectories
    group.committed[topic, 0] = 0, retired_word("2026-05-01", "a try")

    report = audited(whole)
    group.committed[topic, 0] = 1, "1;"

    assert report.ok
    assert report.retired == {"tried": "2026-05-01: a try"}
    assert audited(whole).lost == 4


# Any records on the topics

EXTREMES: dict[type, tuple[Any, ...]] = {
    int: (-(1 << 63), -(1 << 31), -1, 0, 1 << 20, (1 << 31) - 1, (1 << 63) - 1),
    float: (float("nan"), float("inf"), -1.0, 1e300),
    str: ("", "nobody", "\0", "x" * 3000),
    bytes: (b"", b"\xff", b"\0" * 16, b"\xff" * 4096),
    bool: (True, False),
    tuple: ((),),
}


def mutated(message: Any, dice: Random) -> Any:
    """The same record with one field, at any depth, set to an extreme value."""
    field = dice.choice(fields(message))
    value = getattr(message, field.name)
    if is_dataclass(value) and dice.random() < 0.8:
        return replace(message, **{field.name: mutated(value, dice)})
    if isinstance(value, tuple) and value and is_dataclass(value[0]) and dice.random() < 0.8:
        return replace(message, **{field.name: (mutated(value[0], dice), *value[1:])})
    return replace(message, **{field.name: dice.choice(EXTREMES.get(type(value), (value,)))})


@pytest.mark.parametrize("seed", cases(range(16), 4))
def test_no_writable_record_ends_the_audit(seed: int) -> None:
    dice, whole = Random(seed), Whole()
    kinds = {topic: whole.topics.record_of(topic) for topic in whole.log.topics}
    written = [
        (record, whole.codec.decode(record.value, kind))
        for topic, kind in kinds.items()
        if kind is not None
        for record in whole.log.all(topic)
    ]
    added = 0
    while added < 150:
        record, message = dice.choice(written)
        try:
            value = whole.codec.encode(record.topic, mutated(message, dice))
        except WireError:
            continue
        whole.log.append(record.topic, record.key, value, 0)
        added += 1
        if added % 25 == 0:
            assert audited(whole, drained=bool(added % 2)).records > added


def test_a_foreign_start_without_valid_offsets_does_not_end_the_audit() -> None:
    rig = Rig()
    body = RolloutStarted(request("r", ASKS), -5, -5)
    rig.write(rig.topics.events, "r", Event.decision("r", 1, "stranger", body), 0)

    assert audited(rig).lost > 0


def test_answers_are_counted_even_if_no_program_is_run(whole: Whole) -> None:
    """For a log with a program that ends any process it runs in."""
    report = audited(whole, run_programs=False)

    assert (report.ok, report.not_run_again, report.ended) == (True, 4, 4)
    assert report.checked["I4"] > 0
