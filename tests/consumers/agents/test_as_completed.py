"""Effects that stay open concurrently, and calls that only count tokens."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall.consumers.agents.effects import (
    Agent,
    AsCompleted,
    Begun,
    CallModel,
    Completed,
    Finish,
    Reset,
    Step,
    Task,
    WishFailed,
    user,
)
from rollcall.schemas.ids import command_id
from rollcall.schemas.messages import AttemptStarted, Event, Limits, Sampling, Trajectory
from rollcall.schemas.packed import ids_of, pack_ids
from tests.support.journals import Hand, fold, trajectories, world_of
from tests.support.tiers import examples

COUNTING = Sampling(max_tokens=0)


def one(effects: list[Any]) -> Any:
    assert len(effects) == 1, effects
    return effects[0]


def told(done: Completed) -> str:
    assert isinstance(done.wish, CallModel)
    return f"{done.wish.messages[0].content}={getattr(done.outcome, 'text', 'nothing')}"


def gathers(task: Task) -> Agent:
    """Four concurrent calls, delivered one by one."""
    done = yield AsCompleted([CallModel([user(str(n))]) for n in range(4)])
    heard = [told(done)]
    for _ in range(3):
        heard.append(told((yield AsCompleted())))
    yield Finish(",".join(heard))


@given(st.permutations(range(4)))
def test_outcomes_are_delivered_in_log_order(order: list[int]) -> None:
    hand = Hand(gathers)
    calls = hand.start("gathers")

    for n in order[:-1]:
        assert hand.say(calls[n], f"to {n}") == []
        assert hand.say(calls[order[0]], "twice") == []
    decision = one(hand.say(calls[order[-1]], f"to {order[-1]}"))

    assert decision.body.result == ",".join(f"{n}=to {n}" for n in order)
    assert hand.journal.ignored == {"late_or_twice": 3}


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(2, 6), st.integers(1, 30), st.randoms(use_true_random=False))
def test_a_pool_kept_full_receives_every_effect_once(
    width: int, wishes: int, random: Random
) -> None:
    # Given a program that keeps so many calls open, and answers in any order
    def pools(task: Task) -> Agent:
        left = [CallModel([user(str(n))]) for n in range(wishes)]
        going, heard = left[:width], []
        left = left[width:]
        opened, waiting = going, len(going)
        while waiting:
            done = yield AsCompleted(opened)
            heard.append(told(done))
            opened, left = left[:1], left[1:]
            waiting += len(opened) - 1
        yield Finish(",".join(heard))

    hand = Hand(pools)
    open_ = hand.start("pools", limits=Limits(max_turns=wishes))
    answered = []

    # When all are answered
    while not isinstance(open_[0], Event):
        assert len(open_) <= width
        call = open_.pop(random.randrange(len(open_)))
        answered.append(call.messages[0].content)
        open_ += hand.say(call, f"to {answered[-1]}")

    # Then each is delivered in that order, and a second reader reaches the same result
    assert one(open_).body.result == ",".join(f"{n}=to {n}" for n in answered)
    hand.end(open_[0])
    world = world_of({"pools": pools})
    assert trajectories(fold(hand.entries, world)[1]) == trajectories(fold(hand.entries, world)[1])
    assert len(set(answered)) == wishes


def test_completions_during_another_wait_are_delivered_later_in_order() -> None:
    def waits(task: Task) -> Agent:
        done = yield AsCompleted([CallModel([user(name)]) for name in "abc"])
        heard = [told(done)]
        answer = yield CallModel([user("alone")])
        pair = yield [CallModel([user("left")]), CallModel([user("right")])]
        heard.append(f"{answer.text}+{pair[0].text}+{pair[1].text}")
        heard.append(told((yield AsCompleted())))
        heard.append(told((yield AsCompleted([CallModel([user("d")])]))))
        heard.append(told((yield AsCompleted())))
        yield Finish(",".join(heard))

    hand = Hand(waits)
    a, b, c = hand.start("waits")
    alone = one(hand.say(b, "2"))
    assert hand.say(c, "3") == []
    left, right = hand.say(alone, "me")
    assert hand.say(right, "r") == []
    assert hand.say(a, "1") == []

    # Both answers from in between are delivered at once; one more call is open then
    d = one(hand.say(left, "l"))
    decision = one(hand.say(d, "4"))

    assert decision.body.result == "b=2,me+l+r,c=3,a=1,d=4"


def test_thousands_of_outcomes_may_arrive_during_another_wait() -> None:
    def hoards(task: Task) -> Agent:
        yield AsCompleted([CallModel([user(str(n))]) for n in range(3000)])
        yield CallModel([user("meanwhile")])
        for _ in range(2999):
            done = yield AsCompleted()
        yield Finish(told(done))

    hand = Hand(hoards)
    first, *others = hand.start("hoards", limits=Limits(max_turns=4000))
    meanwhile = one(hand.say(first, "yes"))
    for call in others:
        hand.say(call, "yes")

    assert one(hand.say(meanwhile, "done")).body.result == "2999=yes"


def test_a_failed_effect_is_an_outcome_and_is_not_raised() -> None:
    def hears(task: Task) -> Agent:
        first = yield AsCompleted([Reset("left"), Reset("right")])
        second = yield AsCompleted([Step("go", first.wish.session)])
        assert isinstance(second.outcome, WishFailed)
        yield Finish(f"{second.wish.session} {second.outcome.code}")

    hand = Hand(hears)
    left, right = hand.start("hears", limits=Limits(max_tries=2))
    step = one(hand.show(left))

    again = one(hand.fail(right, "raised"))
    decision = one(hand.fail(again, "raised"))

    assert (step.session, again.tries) == ("left", 1)
    assert decision.body.result == "right raised"


@pytest.mark.parametrize(
    "wishes",
    [
        [],
        (),
        None,
        "text",
        [Finish()],
        [AsCompleted()],
        [Reset(), Reset()],
        [CallModel([user("x")]), 3],
        {Reset()},
    ],
)
def test_as_completed_of_nothing_or_invalid_effects_fails_the_rollout(wishes: Any) -> None:
    def wishes_for(task: Task) -> Agent:
        yield AsCompleted(wishes)

    decision = one(Hand(wishes_for).start("wishes_for"))

    assert (decision.body.status, decision.body.code) == ("failed", "rubbish")


@pytest.mark.parametrize("second", [Step("b"), Reset()])
def test_a_session_has_one_effect_open(second: Reset | Step) -> None:
    def hurries(task: Task) -> Agent:
        yield Reset()
        yield AsCompleted([Step("a"), CallModel([user("x")])])
        yield AsCompleted([second])

    hand = Hand(hurries)
    _, call = hand.show(one(hand.start("hurries")))

    decision = one(hand.say(call, "yes"))

    assert decision.body.code == "rubbish"
    assert "session 'main'" in decision.body.reason


def test_a_program_may_end_with_effects_still_open() -> None:
    def leaves(task: Task) -> Agent:
        done = yield AsCompleted([CallModel([user("a")]), CallModel([user("b")]), Reset()])
        yield Finish(told(done))

    hand = Hand(leaves)
    a, b, reset = hand.start("leaves")
    decision = one(hand.say(a, "yes"))

    # An answer before the end is read counts, and the program is not resumed
    assert hand.say(b, "no") == []
    trajectory, *closing = hand.read(decision)

    assert isinstance(trajectory, Trajectory)
    assert (trajectory.result, trajectory.model_calls) == ("a=yes", 2)
    assert [each.kind for each in closing] == ["close"]
    assert closing[0].command_id == reset.command_id


def test_effects_opened_just_before_the_end_are_not_sent() -> None:
    def hasty(task: Task) -> Agent:
        yield AsCompleted([CallModel([user("a")]), CallModel([user("b")])])
        yield CallModel([user("c")])
        yield AsCompleted([CallModel([user("d")])])
        yield Finish("enough")

    hand = Hand(hasty)
    a, b = hand.start("hasty")
    c = one(hand.say(a, "1"))
    assert hand.say(b, "2") == []

    decision = one(hand.say(c, "3"))

    assert decision.body.result == "enough"
    assert decision.body.positions == 3
    rollout = hand.journal.open["r"]
    assert rollout.attempt.outstanding == {}
    assert hand.end(decision).model_calls == 3


def test_the_old_attempt_does_not_continue_after_a_lost_session() -> None:
    hand = Hand(gathers_and_plays)
    reset = hand.start("gathers_and_plays")[0]
    step, *calls = hand.show(reset)

    decision = one(hand.fail(step, "session_lost", retriable=False))

    assert isinstance(decision.body, AttemptStarted)
    for call in calls:
        assert hand.say(call, "late") == []
    again = hand.read(decision)
    assert [type(each).__name__ for each in again][-1] == "EnvironmentStep"
    assert again[-1].attempt == 2


def gathers_and_plays(task: Task) -> Agent:
    yield Reset()
    opened = [Step("a"), CallModel([user("x")]), CallModel([user("y")])]
    for _ in range(3):
        yield AsCompleted(opened)
        opened = []


# Calls that only count


def counts_first(task: Task) -> Agent:
    messages = [user("hello")]
    counted = yield CallModel(messages, sampling=COUNTING)
    answer = yield CallModel(messages)
    messages += [answer.message, user("more")]
    both = yield [CallModel(list(messages), sampling=COUNTING), CallModel(list(messages))]
    yield Finish(f"{counted.prompt_tokens} {both[0].prompt_tokens} {both[1].prompt_tokens}")


def test_a_token_counting_call_extends_no_conversation() -> None:
    hand = Hand(counts_first)
    counted = one(hand.start("counts_first"))
    call = one(hand.say(counted, ""))
    count, again = hand.say(call, "yes!")
    hand.say(again, "good")
    decision = one(hand.say(count, ""))

    # The same tokens come before the one that counts and the one that samples
    assert count.prefix_ids == again.prefix_ids
    assert count.messages == again.messages == (user("more"),)
    assert decision.body.result == "5 13 13"
    trajectory = hand.end(decision)
    sequence = one(list(trajectory.sequences or ()))
    assert "".join(map(chr, ids_of(sequence.token_ids))) == "helloyes!moregood"
    assert (trajectory.model_calls, trajectory.sampled_tokens) == (4, 8)


def test_a_conversation_may_be_counted_and_extended_concurrently() -> None:
    def overlaps(task: Task) -> Agent:
        answer = yield CallModel([user("a")])
        known = [user("a"), answer.message]
        yield AsCompleted(
            [CallModel([*known, user("b")]), CallModel([*known, user("c")], sampling=COUNTING)]
        )
        yield Finish()

    hand = Hand(overlaps)
    b, c = hand.say(one(hand.start("overlaps")), "one")

    assert b.sequence == c.sequence == 0
    assert b.prefix_ids == c.prefix_ids == pack_ids(map(ord, "aone"))
    assert one(hand.fail(c)).prefix_ids == c.prefix_ids


def test_given_tokens_are_included_in_a_token_count() -> None:
    def counts(task: Task) -> Agent:
        begun = Begun(1, pack_ids([7, 8, 9]))
        answer = yield CallModel([user("a"), user("bc")], sampling=COUNTING, begun=begun)
        yield Finish(str(answer.prompt_tokens))

    hand = Hand(counts)
    call = one(hand.start("counts"))

    decision = one(hand.say(call, ""))

    assert call.prefix_ids == pack_ids([7, 8, 9])
    assert decision.body.result == "5"
    assert hand.end(decision).sequences == ()


def test_an_answer_carries_its_command_id_and_its_time() -> None:
    def asks(task: Task) -> Agent:
        answer = yield CallModel([user("abc")])
        where = answer.command_id.hex(), answer.at_ms
        yield Finish(f"{where} {answer.prompt_tokens} {answer.sampled_tokens}")

    hand = Hand(asks)
    decision = one(hand.say(one(hand.start("asks")), "hi"))

    where = command_id("r", 1, 0, 0).hex(), hand.now_ms
    assert decision.body.result == f"{where} 3 2"


def test_a_program_receives_its_token_limit_and_sampling() -> None:
    def asks(task: Task) -> Agent:
        yield Finish(f"{task.max_tokens} {task.sampling.temperature}")

    limits, sampling = Limits(max_tokens=9), Sampling(temperature=0.5)
    decision = one(Hand(asks).start("asks", limits=limits, sampling=sampling))

    assert decision.body.result == "9 0.5"
