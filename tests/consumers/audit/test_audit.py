"""Audit results of complete logs and of logs that were altered by hand."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from rollcall.consumers.audit.audit import audit
from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.inference.scripted import ScriptedEngine
from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.messages import (
    EnvironmentStepped,
    Event,
    Limits,
    ModelAnswered,
    ModelCall,
    RolloutStarted,
    ScoredTrajectory,
    TrainStep,
    Trajectory,
)
from rollcall.schemas.topics import Topics, wanted
from tests.support.hand_answers import killed
from tests.support.journals import DICED, Dice, world_of
from tests.support.lake import crossing, walk
from tests.support.rig import Rig
from tests.support.tiers import cases
from tests.support.whole_log import Whole, audited, found

MEANT = {"I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9"}


def test_a_complete_log_passes_a_real_check_of_every_invariant(
    whole: Whole,
) -> None:
    report = audited(whole)

    assert found(report) == set()
    assert {name for name, count in report.checked.items() if count} == MEANT
    assert (report.accepted, report.ended, report.open, report.pending) == (4, 4, 0, 0)
    assert (report.repeated, report.duplicates, report.not_run_again) == (0, 0, 0)
    assert report.records == sum(len(whole.log.all(t)) for t in whole.log.topics)


@pytest.mark.parametrize("seed", cases(range(60), 10))
def test_any_generated_journal_passes_every_invariant(seed: int) -> None:
    """Answers in any order, twice, late, by zombies: law and fold count the same."""
    dice = Dice(Random(seed), rollouts=4).live()
    topics, codec = Topics("t."), Codec(LocalRegistry())
    log = MemoryLog(wanted("t.", ["p"], partitions=1))
    written = [(topics.events, e.event, e.offset, e.at_ms) for e in dice.entries]
    for topic, message, offset, at_ms in written:
        while log.topics[topic][0].end < offset:
            log.hole(topic, 0)
        log.wall = lambda at_ms=at_ms: (at_ms + 0.5) / 1000  # type: ignore[misc]
        log.append(topic, message.rollout_id.encode(), codec.encode(topic, message), 0)
    for _ in range(dice.rollouts):
        log.append(topics.requests, None, b"never decoded", 0)
    for _, effect in dice.outputs:
        if not isinstance(effect, Event):
            topic = topic_of(topics, effect)
            log.append(topic, effect.rollout_id.encode(), codec.encode(topic, effect), 0)

    report = audit(
        SimpleNamespace(log=log, codec=codec, topics=topics),
        world_of(DICED),
        drained=True,
        scorings=(),
    )

    assert found(report) == set()
    assert report.ended == report.accepted > 0


def topic_of(topics: Topics, effect: Any) -> str:
    if isinstance(effect, Trajectory):
        return topics.trajectories
    return topics.calls("p") if isinstance(effect, ModelCall) else topics.steps


# I1


def test_a_start_of_a_missing_request_breaks_i1(whole: Whole) -> None:
    whole.lose(whole.topics.requests, 1)

    report = audited(whole)

    assert found(report) == {"I1"}
    assert report.breaches[0].place == "t.rollout.requests 0@1"


def started(whole: Whole, number: int, begin: int, offset: int) -> None:
    body = RolloutStarted(crossing(number), begin, offset)
    event = Event.decision(f"r{number}", 1, "hand", body)
    whole.write(whole.topics.events, f"r{number}", event, 0)


def test_a_request_skipped_by_a_start_breaks_i1_and_is_lost(whole: Whole) -> None:
    whole.ask(crossing(4))
    whole.ask(crossing(5))
    started(whole, 5, 4, 5)

    report = audited(whole, drained=False)

    assert [(b.invariant, b.place) for b in report.breaches] == [("I1", "t.rollout.requests 0@4")]
    assert (report.lost, report.doubled, report.ok) == (1, 0, False)


def test_an_open_rollout_breaks_i1_only_if_the_log_is_drained(whole: Whole) -> None:
    whole.ask(crossing(4))
    started(whole, 4, 4, 4)

    running, drained = audited(whole, drained=False), audited(whole)

    assert (running.ok, running.open) == (True, 1)
    assert found(drained) == {"I1"}
    assert "r4 began here and has not ended" in drained.breaches[0].text


# I2


def test_an_unrequested_answer_without_a_successor_breaks_i2() -> None:
    rig = Rig()
    loops = [rig.agents(), rig.models(ScriptedEngine("p", walk)), rig.environments()]
    rig.ask(crossing(0))
    while not any(e.body.terminated for e in rig.events(EnvironmentStepped)):  # type: ignore[union-attr]
        for loop in loops:
            loop.turn(0.0)
    rig.log.hole(rig.topics.events, 0)
    hole = rig.log.topics[rig.topics.events][0].end - 1
    rig.settle(*loops)
    assert audited(rig, scorings=()).ok

    said = rig.events(ModelAnswered)[0]
    stray = replace(said, position=77, body_digest=b"another")
    value = rig.codec.encode(rig.topics.events, stray)
    at_ms = int(rig.clock() * 1000)
    rig.log.topics[rig.topics.events][0].records[hole] = (b"r0", value, at_ms, None)

    report = audited(rig, scorings=())

    assert [(b.invariant, b.offset) for b in report.breaches] == [("I2", hole)]


# I3


def test_a_command_not_implied_by_the_journal_breaks_i3(whole: Whole) -> None:
    call = whole.read(whole.topics.calls("p"), ModelCall)[0]
    foreign = replace(call, position=90, command_id=b"0123456789abcdef")
    whole.write(whole.topics.calls("p"), "r0", foreign)

    report = audited(whole)

    assert found(report) == {"I3"}
    last = whole.log.topics[whole.topics.calls("p")][0].end - 1
    assert report.breaches[0].place == f"t.model.calls.p 0@{last}"


def test_a_missing_implied_command_breaks_i3_only_below_the_commit(
    whole: Whole,
) -> None:
    whole.lose(whole.topics.steps, 3)

    below = audited(whole, drained=False)
    whole.log.groups.clear()
    above = audited(whole, drained=False)

    assert (found(below), below.lost) == ({"I3"}, 1)
    assert (above.ok, above.pending) == (True, 1)


def test_a_retry_with_another_seed_breaks_i3(whole: Whole) -> None:
    calls = whole.topics.calls("p")
    at = whole.offset_of(calls, ModelCall, lambda call: call.tries == 1)
    call = next(c for c in whole.read(calls, ModelCall) if c.tries == 1)
    whole.lose(calls, at)
    whole.write(calls, call.rollout_id, replace(call, seed=call.seed + 1))

    report = audited(whole)

    assert found(report) == {"I3"}
    assert "a retry must not sample anew" in report.breaches[0].text


def test_an_abandoned_command_need_not_have_been_sent_after_a_takeover() -> None:
    """A limit of its user may have held it back: then no commit waited for it."""
    rig = Rig()
    owner = rig.agents("a1")
    for number in range(2):
        rig.ask(replace(crossing(number), limits=Limits(step_timeout_s=10.0)))
    rig.settle(owner)
    rig.log.topics[rig.topics.steps][0].records[1] = None
    rig.clock.pass_by(30.0)
    rig.settle(owner)
    rig.commit(owner)
    assert found(audited(rig, drained=False)) == {"I3"}

    killed(owner)
    heir = rig.agents("a2")
    rig.order("cancel", rollout_id="r0")
    rig.settle(heir)

    assert found(audited(rig, drained=False)) == set()


# I4, I5


def test_a_duplicate_answer_in_a_trajectory_breaks_i4(whole: Whole) -> None:
    (one, *_) = whole.trajectories()
    doubled = replace(one, steps=(*(one.steps or ()), (one.steps or ())[-1]))
    whole.write(whole.topics.trajectories, one.rollout_id, doubled, 0)

    report = audited(whole, drained=False)

    assert (found(report), report.doubled) == ({"I4"}, 1)


def test_a_trajectory_that_differs_from_the_fold_breaks_i5(
    whole: Whole,
) -> None:
    (one, *_) = whole.trajectories()
    whole.write(whole.topics.trajectories, one.rollout_id, replace(one, result="better"), 0)

    report = audited(whole, drained=False)

    assert found(report) == {"I5"}
    assert report.breaches[0].place == "t.trajectories 0@4"


def test_a_different_trajectory_inside_a_scored_record_breaks_i5(whole: Whole) -> None:
    scored = whole.read(whole.topics.scored, ScoredTrajectory)[0]
    other = replace(scored, trajectory=replace(scored.trajectory, result="better"))
    whole.write(whole.topics.scored, "g0", other)

    assert found(audited(whole)) == {"I5"}


def test_the_field_unknown_to_the_release_before_may_be_missing() -> None:
    # Given a rollout that asks for a scoring
    whole = Whole(scorings=("s",))
    one, *_ = whole.trajectories()
    assert one.request
    assert one.request.scorings

    # When a worker that does not know the field writes it again, or one that alters something
    old = replace(one, request=replace(one.request, scorings=()))
    whole.write(whole.topics.trajectories, one.rollout_id, old, 0)
    fine = audited(whole, drained=False)
    whole.write(whole.topics.trajectories, one.rollout_id, replace(old, result="better"), 0)

    assert found(fine) == set()
    assert found(audited(whole, drained=False)) == {"I5"}


def test_a_duplicate_trajectory_is_counted_and_no_breach(whole: Whole) -> None:
    (one, *_) = whole.trajectories()
    whole.write(whole.topics.trajectories, one.rollout_id, one, 0)

    report = audited(whole)

    assert (report.ok, report.duplicates) == (True, 1)


# I6


def test_a_committed_request_that_never_started_breaks_i6(whole: Whole) -> None:
    whole.ask(crossing(4))
    whole.commit_by_hand("t.agents", whole.topics.requests, 5)

    report = audited(whole, drained=False)

    assert (found(report), report.lost) == ({"I6"}, 1)


def test_a_committed_command_without_an_answer_breaks_i6(whole: Whole) -> None:
    whole.loops[2].stop()
    whole.ask(crossing(4))
    whole.settle(*whole.loops[:2])
    waiting = whole.log.topics[whole.topics.steps][0].end

    before = audited(whole, drained=False)
    whole.commit_by_hand("t.environments", whole.topics.steps, waiting)
    report = audited(whole, drained=False)

    assert before.ok
    assert [(b.invariant, b.offset) for b in report.breaches] == [("I6", waiting - 1)]


def test_a_committed_trajectory_without_a_score_breaks_i6(whole: Whole) -> None:
    whole.lose(whole.topics.scored, 3)
    whole.lose(whole.topics.train_steps, 1)  # it names that record

    report = audited(whole, drained=False)

    assert [(b.invariant, b.place) for b in report.breaches] == [("I6", "t.trajectories 0@3")]


# I7


def test_a_rollout_trained_twice_breaks_i7(whole: Whole) -> None:
    whole.train(3, 1)

    report = audited(whole)

    assert [(b.invariant, b.place, b.kind) for b in report.breaches] == [
        ("I7", "t.train.steps 0@2", "doubled")
    ]
    assert "0@0 has consumed" in report.breaches[0].text


@pytest.mark.parametrize(("replayed", "kinds"), [(1, []), (0, ["doubled"])])
def test_a_rollout_may_be_trained_again_if_its_step_says_so(
    whole: Whole, replayed: int, kinds: list[str]
) -> None:
    whole.train(3, 1, metrics={"replayed": float(replayed)})

    assert [breach.kind for breach in audited(whole).breaches] == kinds


def test_groups_consumed_by_an_abandoned_branch_may_be_consumed_again(whole: Whole) -> None:
    whole.train(3, 2, 3, parent=1)

    assert audited(whole).ok


def test_a_reference_to_another_rollouts_record_breaks_i7(whole: Whole) -> None:
    whole.lose(whole.topics.train_steps, 1)
    whole.train(2, 2)
    step = whole.read(whole.topics.train_steps, TrainStep)[-1]
    wrong = replace(step.trajectories[0], offset=3)
    whole.write(whole.topics.train_steps, "p", replace(step, version=3, trajectories=(wrong,)))

    report = audited(whole)

    assert found(report) == {"I7"}
    assert "as another rollout's" in report.breaches[0].text


def test_a_reference_to_no_record_breaks_i7(whole: Whole) -> None:
    step = whole.read(whole.topics.train_steps, TrainStep)[-1]
    nowhere = replace(step.trajectories[0], offset=99, rollout_id="another")
    whole.write(whole.topics.train_steps, "p", replace(step, version=3, trajectories=(nowhere,)))

    report = audited(whole)

    assert found(report) == {"I7"}
    assert "t.trajectories.scored 0@99" in report.breaches[0].text


def test_two_different_steps_of_one_version_break_i7_a_duplicate_does_not(
    whole: Whole,
) -> None:
    step = whole.read(whole.topics.train_steps, TrainStep)[-1]
    whole.write(whole.topics.train_steps, "p", step)
    again = audited(whole)
    whole.write(whole.topics.train_steps, "p", replace(step, parent=0))

    assert (again.ok, again.duplicates) == (True, 1)
    assert found(audited(whole)) == {"I7"}


# I8


def test_an_end_without_a_trajectory_breaks_i8_only_below_the_commit(whole: Whole) -> None:
    whole.lose(whole.topics.trajectories, 2)

    below = audited(whole, drained=False)
    whole.log.groups.clear()
    above = audited(whole, drained=False)

    assert (found(below), below.lost) == ({"I8"}, 1)
    assert (above.ok, above.pending) == (True, 1)


def test_a_trajectory_without_an_end_breaks_i8(whole: Whole) -> None:
    (one, *_) = whole.trajectories()
    whole.write(whole.topics.trajectories, "r0", replace(one, last_offset=1), 0)

    report = audited(whole, drained=False)

    assert (found(report), report.doubled) == ({"I8"}, 1)


def test_an_unscored_trajectory_breaks_i8_once_the_log_is_drained() -> None:
    whole = Whole(4, scorings=("s", "other"))
    whole.commit_by_hand("t.rewards.other", whole.topics.trajectories, 0)

    report = audited(whole)

    assert (found(report), len(report.breaches)) == ({"I8"}, 4)
    assert audited(whole, drained=False).pending == 4


def test_an_unscored_trajectory_breaks_i8_in_a_drained_log() -> None:
    rig = Rig()
    loops = [rig.agents(), rig.models(ScriptedEngine("p", walk)), rig.environments()]
    rig.ask(crossing(0))
    rig.settle(*loops)
    rig.commit(*loops)

    report = audited(rig)

    assert [b.text for b in report.breaches] == ["no scoring has scored this trajectory"]
    assert audited(rig, drained=False).pending == 1


# I9


def test_repeated_work_is_counted_and_too_much_breaks_i9(whole: Whole) -> None:
    answered = whole.events(ModelAnswered)[3]
    whole.write(whole.topics.events, answered.rollout_id, answered, 0)

    free = audited(whole)
    allowed, broken = (audited(whole, most_repeated=most) for most in (1, 0))

    assert (free.ok, free.repeated, allowed.ok) == (True, 1, True)
    last = whole.log.topics[whole.topics.events][0].end - 1
    assert [(b.invariant, b.offset) for b in broken.breaches] == [("I9", last)]


# Allowed differences


def test_unreadable_records_are_counted_and_named(whole: Whole) -> None:
    for topic in whole.log.topics:
        if topic not in (whole.topics.requests, whole.topics.versions, whole.topics.control):
            whole.log.append(topic, b"k", b"rubbish", 0)
    whole.log.append(whole.topics.steps, b"k", None, 0)

    report = audited(whole)

    assert report.ok
    assert report.dead_letters == 1
    assert report.unreadable == {
        whole.topics.events: 1,
        whole.topics.train_steps: 1,
        whole.topics.calls("p"): 1,
        whole.topics.steps: 2,
        whole.topics.trajectories: 1,
        whole.topics.scored: 1,
    }
    assert report.first_unreadable[0].startswith("t.rollout.events 0@")


def test_rollouts_of_missing_programs_are_counted_and_not_rerun(whole: Whole) -> None:
    none = world_of({})
    world = replace(none, program_of=only("single_turn", none.program_of))

    report = audit(whole, world, drained=True)

    assert (found(report), report.not_run_again, report.ended) == (set(), 4, 4)
    whole.write(
        whole.topics.trajectories, "r0", replace(whole.trajectories()[0], result="better"), 0
    )
    assert found(audit(whole, world)) == {"I5"}


@pytest.mark.parametrize("older_first", [False, True])
def test_a_rollout_not_rerun_may_be_written_by_either_release(
    older_first: bool,
) -> None:
    # Given a trajectory of which nothing is folded, as both releases write it
    whole = Whole(rollouts=0)
    whole.loops.pop()
    whole.ask(replace(crossing(0), scorings=("s",)))
    whole.settle(*whole.loops)
    [one] = whole.trajectories()
    assert one.timers
    assert one.request
    older = replace(one, request=replace(one.request, scorings=()))
    topic = whole.topics.trajectories
    if older_first:
        whole.log.recreate(topic)
        whole.write(topic, one.rollout_id, older, 0)
    for each in (one, older, one):
        whole.write(topic, one.rollout_id, each, 0)
    none = world_of({})
    world = replace(none, program_of=only("single_turn", none.program_of))
    fine = audit(whole, world)

    # When it is written with other timers
    other = replace(one.timers, execution_s=9.0)
    whole.write(topic, one.rollout_id, replace(one, timers=other), 0)

    assert (found(fine), fine.not_run_again) == (set(), 1)
    assert found(audit(whole, world)) == {"I5"}


def only(name: str, programs: Callable[[str], Any]) -> Callable[[str], Any]:
    def program_of(asked: str) -> Any:
        return programs(asked if asked == name else f"{asked} is not here")

    return program_of


@pytest.mark.parametrize("cut", cases(range(0, 80, 3), 5))
def test_a_log_with_a_truncated_start_has_no_breaches(whole: Whole, cut: int) -> None:
    whole.log.delete_before(whole.topics.events, 0, cut)

    report = audited(whole)

    assert found(report) == set()
    assert report.accepted + report.before_window == 4


def test_work_records_removed_by_retention_are_not_reported_missing(whole: Whole) -> None:
    whole.clock.pass_by(3600)
    whole.ask(replace(crossing(4, "g2"), run_id="run", purpose="train"))
    whole.settle(*whole.loops)
    for topic in (whole.topics.steps, whole.topics.calls("p"), whole.topics.trajectories):
        held = whole.log.topics[topic][0]
        young = next(
            at for at, stored in enumerate(held.records) if stored and stored[2] > 1.7e12 + 3.6e6
        )
        whole.log.delete_before(topic, 0, young)

    assert audited(whole).ok


def test_since_and_until_limit_the_audit_to_records_in_between(whole: Whole) -> None:
    whole.clock.pass_by(3600)
    began_ms = int(whole.clock() * 1000)
    for number in (4, 5):
        whole.ask(replace(crossing(number, "g2"), run_id="run", purpose="train"))
    whole.settle(*whole.loops)
    whole.clock.pass_by(3600)
    later_ms = int(whole.clock() * 1000)
    whole.ask(replace(crossing(6), run_id="run", purpose="train"))
    whole.settle(*whole.loops)

    young = audited(whole, since_ms=began_ms)
    old = audited(whole, until_ms=began_ms)
    middle = audited(whole, since_ms=began_ms, until_ms=later_ms)

    assert [found(report) for report in (young, old, middle)] == [set(), set(), set()]
    assert (young.accepted, old.accepted, middle.accepted) == (3, 4, 2)
    assert young.records < middle.records + old.records


def test_several_runs_share_a_log(whole: Whole) -> None:
    step = whole.read(whole.topics.train_steps, TrainStep)[-1]
    for version in (1, 2):
        other = replace(step, policy_id="q", run_id="another", step=1, parent=0, version=version)
        whole.write(whole.topics.train_steps, "q", replace(other, trajectories=()))

    assert audited(whole).ok


def test_a_report_serialises_to_plain_values(whole: Whole) -> None:
    whole.lose(whole.topics.trajectories, 2)

    plain = orjson.loads(orjson.dumps(audited(whole).plain()))

    assert (plain["ok"], plain["lost"], plain["found"]) == (False, 1, {"I8": 1})
    assert plain["breaches"][0]["topic"] == "t.rollout.events"
