"""The fold without any log: on hand-written journals, then on generated ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall.consumers.agents.effects import (
    Agent,
    Begun,
    CallModel,
    EnvironmentAnswer,
    Finish,
    ModelAnswer,
    Reset,
    Step,
    Task,
    WishFailed,
    user,
)
from rollcall.consumers.agents.fold.attempt import MOST_BUSY
from rollcall.consumers.agents.fold.journal import FEW_RECORDS, Journal
from rollcall.consumers.agents.programs import program_of
from rollcall.consumers.agents.watermark import read_watermark
from rollcall.consumers.history.reading.counting import Counting
from rollcall.schemas.errors import DeterminismError, ProgramFailed
from rollcall.schemas.ids import call_seed, command_id, prefix_digest
from rollcall.schemas.messages import (
    AttemptStarted,
    CallFailed,
    DeadlinePassed,
    EnvironmentStep,
    EnvironmentStepped,
    Event,
    Limits,
    Message,
    ModelCall,
    RolloutCancelled,
    RolloutFinished,
    RolloutRefused,
    RolloutStarted,
    Sampling,
    StepTaken,
    Trajectory,
)
from rollcall.schemas.packed import ids_of, logprobs_of, mask_of, pack_ids
from tests.support.cold_program import COLD, cold
from tests.support.journals import (
    CODEC,
    DICED,
    Dice,
    Hand,
    answer_to,
    fold,
    request,
    said,
    trajectories,
    world_of,
)
from tests.support.tiers import examples

SYSTEM = Message("system", "Be brief.")


def one(effects: list[Any]) -> Any:
    assert len(effects) == 1, effects
    return effects[0]


def asks_once(task: Task) -> Agent:
    answer = yield CallModel([user(task.prompt)])
    yield Finish(answer.text)


def asks_two_at_once(task: Task) -> Agent:
    left, right = yield [CallModel([user("left")]), CallModel([user("right")])]
    yield Finish(f"{getattr(left, 'text', left)}|{getattr(right, 'text', right)}")


def forgives(task: Task) -> Agent:
    try:
        yield CallModel([user("first")])
    except WishFailed as failed:
        yield Finish(f"forgave {failed.code}")


def changed_body(task: Task) -> Agent:
    yield CallModel([user("something else")])


def plays_on(task: Task) -> Agent:
    yield Reset()
    for n in range(100):
        yield Step(f"move {n}")


# The life of a rollout


def test_a_react_rollout_runs_from_reset_to_finish() -> None:
    hand = Hand()

    reset = one(hand.start(request(limits=Limits(max_turns=5))))
    first = one(hand.show(reset, "a hall"))
    step = one(hand.say(first, "north"))
    second = one(hand.show(step, "a cellar", reward=0.25))
    last_step = one(hand.say(second, "down"))
    decision = one(hand.show(last_step, "daylight", reward=1.0, terminated=True))
    trajectory = hand.end(decision)

    assert (reset.kind, reset.environment, reset.environment_config, reset.seed) == (
        "reset", "maze", '{"size":3}', 5,
    )  # fmt: skip
    assert first.messages == (SYSTEM, user("a hall"))
    assert (first.prefix_ids, first.prefix_length) == (b"", 0)
    assert (step.kind, step.index, step.action, step.history) == ("step", 0, "north", None)
    assert second.messages == (user("a cellar"),)
    assert second.prefix_length == len("Be brief.a hallnorth")
    assert last_step.index == 1
    assert decision.body == RolloutFinished("finished", "", "", "daylight", 5)
    assert (trajectory.status, trajectory.result) == ("finished", "daylight")
    assert [s.action for s in trajectory.steps or ()] == [None, "north", "down"]
    assert hand.journal.open == {}


def test_every_command_names_its_position_in_the_rollout() -> None:
    hand = Hand()

    reset = one(hand.start(request("r7")))
    call = one(hand.show(reset))

    for position, command in enumerate((reset, call)):
        assert (command.rollout_id, command.attempt, command.tries) == ("r7", 1, 0)
        assert command.position == position
        assert command.command_id == command_id("r7", 1, position, 0)
        assert command.answer_partition == 3
    assert call.seed == call_seed("r7", 1, 1)
    assert reset.body_digest != call.body_digest


def test_two_rollouts_with_one_sampling_seed_get_the_same_call_seeds() -> None:
    hand = Hand(asks_once)

    first = one(hand.start("asks_once", rollout_id="a", sampling_seed="s"))
    second = one(hand.start("asks_once", rollout_id="b", sampling_seed="s"))

    assert first.seed == second.seed == call_seed("s", 1, 0)
    assert first.command_id != second.command_id


def test_a_trajectory_records_each_tokens_author_and_policy_version() -> None:
    hand = Hand()
    call = one(hand.show(one(hand.start()), "hi"))
    step = one(hand.read(answer_to(call, said(call, "go", version=4))))
    second = one(hand.show(step, "ho"))
    step = one(hand.read(answer_to(second, said(second, "on", version=5))))

    trajectory = hand.end(one(hand.show(step, "end", terminated=True)))

    sequence = one(list(trajectory.sequences or ()))
    read, again = "Be brief.hi", "ho"
    assert "".join(map(chr, ids_of(sequence.token_ids))) == f"{read}go{again}on"
    mask = [0] * len(read) + [1, 1] + [0] * len(again) + [1, 1]
    assert mask_of(sequence.loss_mask).tolist() == mask
    assert logprobs_of(sequence.behaviour_logprobs).tolist() == [m * -0.5 for m in mask]
    versions = [-1] * len(read) + [4, 4] + [-1] * len(again) + [5, 5]
    assert ids_of(sequence.versions).tolist() == versions
    assert mask_of(sequence.policy_index).tolist() == [0 if m else 255 for m in mask]
    assert sequence.messages == (
        SYSTEM, user("hi"), Message("assistant", "go"), user("ho"), Message("assistant", "on"),
    )  # fmt: skip
    assert (trajectory.policies, trajectory.model_calls) == (("p",), 2)
    assert (trajectory.sampled_tokens, trajectory.failures) == (4, 0)


def test_a_trajectory_names_its_place_in_the_journal_and_its_times() -> None:
    hand = Hand(asks_once)
    hand.start("asks_once", rollout_id="other")
    call = one(hand.start("asks_once"))
    began = hand.now_ms

    trajectory = hand.end(one(hand.say(call, "yes")))

    assert (trajectory.journal_partition, trajectory.attempt) == (3, 1)
    assert (trajectory.first_offset, trajectory.last_offset) == (1, 3)
    assert (trajectory.started_ms, trajectory.ended_ms) == (began, began + 20)
    assert trajectory.request == request(agent="asks_once")


def test_steps_are_recorded_as_observed() -> None:
    hand = Hand(plays_on)
    reset = one(hand.start("plays_on"))

    step = one(hand.show(reset, "hall", info='{"x":1}'))
    hand.show(step, "cellar", reward=0.5, truncated=True, info="{}")

    trajectory = one(hand.read(one(list(hand.journal.open.values())).cancelled("enough"))[:1])
    assert trajectory.steps == (
        StepTaken(0, "main", None, "hall", 0.0, False, False, '{"x":1}'),
        StepTaken(1, "main", "move 0", "cellar", 0.5, False, True, "{}"),
    )


def test_a_rewritten_history_begins_a_new_sequence_an_extended_one_does_not() -> None:
    def rewrites(task: Task) -> Agent:
        first = yield CallModel([user("a")])
        second = yield CallModel([user("a"), first.message, user("b")])
        yield CallModel([user("in short: b"), second.message, user("c")])

    hand = Hand(rewrites)
    first = one(hand.start("rewrites"))
    second = one(hand.say(first, "x"))
    third = one(hand.say(second, "y"))
    trajectory = hand.end(one(hand.say(third, "z")))

    assert [c.sequence for c in (first, second, third)] == [0, 0, 1]
    assert second.prefix_ids == said(first, "x").added_ids + said(first, "x").token_ids
    assert (third.prefix_ids, third.prefix_length) == (b"", 0)
    told = [[m.content for m in s.messages] for s in trajectory.sequences or ()]
    assert told == [["a", "x", "b", "y"], ["in short: b", "y", "c", "z"]]


def test_the_longest_known_conversation_is_extended() -> None:
    def asks_again(task: Task) -> Agent:
        first = yield CallModel([user("a")])
        known = [user("a"), first.message]
        second = yield CallModel([*known, user("b")])
        yield CallModel([user("a")])  # says the same again: a second conversation [a, x]
        yield CallModel([*known, user("b"), second.message, user("c")])

    hand = Hand(asks_again)
    call = one(hand.start("asks_again"))
    for text in "xyx":
        call = one(hand.say(call, text))

    assert (call.sequence, call.messages) == (0, (user("c"),))


def test_a_failed_first_call_creates_no_conversation() -> None:
    def asks_aside(task: Task) -> Agent:
        first = yield CallModel([user("a")])
        try:
            yield CallModel([user("aside")])
        except WishFailed:
            yield CallModel([user("a"), first.message, user("b")])

    hand = Hand(asks_aside)
    aside = one(hand.say(one(hand.start("asks_aside")), "x"))
    call = one(hand.fail(aside, retriable=False))

    assert (call.sequence, call.messages) == (0, (user("b"),))


def test_concurrent_calls_on_one_history_become_two_sequences() -> None:
    def twins(task: Task) -> Agent:
        first = yield CallModel([user("a")])
        history = [user("a"), first.message]
        yield [CallModel([*history, user("b")]), CallModel([*history, user("c")])]

    hand = Hand(twins)
    left, right = hand.say(one(hand.start("twins")), "x")

    assert (left.sequence, left.messages) == (0, (user("b"),))
    assert (right.sequence, right.prefix_length) == (1, 0)
    assert [m.content for m in right.messages] == ["a", "x", "c"]


def test_given_tokens_begin_a_conversation_and_are_not_trained() -> None:
    def heir(task: Task) -> Agent:
        known = [user("a"), Message("assistant", "x")]
        given = Begun(2, pack_ids(map(ord, "ax")))
        first = yield CallModel([*known, user("b")], begun=given)
        second = yield CallModel([*known, user("b"), first.message, user("c")], begun=given)
        yield Finish(second.text)

    hand = Hand(heir)
    call = one(hand.start("heir"))
    assert (call.prefix_length, call.messages) == (2, (user("b"),))
    later = one(hand.say(call, "yes"))
    assert (later.sequence, later.messages) == (0, (user("c"),))
    assert spelt(later.prefix_ids) == "axbyes"

    [sequence] = hand.end(one(hand.say(later, "no"))).sequences

    assert spelt(sequence.token_ids) == "axbyescno"
    assert [*mask_of(sequence.loss_mask)] == [0, 0, 0, 1, 1, 1, 0, 1, 1]
    assert [*ids_of(sequence.versions)[:3]] == [-1, -1, -1]
    assert [*mask_of(sequence.policy_index)[:4]] == [255, 255, 255, 0]
    assert [*logprobs_of(sequence.behaviour_logprobs)[:2]] == [0, 0]
    assert [m.content for m in sequence.messages] == ["a", "x", "b", "yes", "c", "no"]


def spelt(packed: bytes) -> str:
    """Hand-made tokens are characters."""
    return "".join(map(chr, ids_of(packed)))


def test_different_given_tokens_change_the_body_digest() -> None:
    def heir(task: Task) -> Agent:
        yield CallModel([user("a"), user("b")], begun=Begun(1, pack_ids([task.rng.randrange(9)])))

    digests = {one(Hand(heir).start("heir", sampling_seed=str(n))).body_digest for n in range(30)}

    assert 1 < len(digests) <= 9


@pytest.mark.parametrize(
    "given", [Begun(0, b"0000"), Begun(2, b"0000"), Begun(1, b""), Begun(1, b"000"), "tokens"]
)
def test_invalid_given_tokens_end_the_rollout(given: Any) -> None:
    def heir(task: Task) -> Agent:
        yield CallModel([user("a"), user("b")], begun=given)

    decision = one(Hand(heir).start("heir"))

    assert decision.body.code == "rubbish"
    assert "as begun whole tokens of its first messages" in decision.body.reason


def test_each_policy_has_its_own_sequences_and_its_own_index() -> None:
    def debates(task: Task) -> Agent:
        opening = yield CallModel([user("a")], policy_id="zeno")
        yield CallModel([user("a"), opening.message, user("b")], policy_id="anna")

    hand = Hand(debates)
    second = one(hand.say(one(hand.start("debates")), "x"))
    trajectory = hand.end(one(hand.say(second, "y")))

    assert (second.policy_id, second.sequence) == ("anna", 1)
    assert trajectory.policies == ("anna", "zeno")
    masks = [mask_of(s.policy_index).tolist() for s in trajectory.sequences or ()]
    assert masks == [[255, 1], [255, 255, 255, 0]]


def test_a_program_draws_from_a_generator_seeded_by_rollout_and_attempt() -> None:
    def draws(task: Task) -> Agent:
        yield CallModel([user(str(task.rng.random()))])

    def drawn(rollout_id: str, attempt: int = 1) -> str:
        hand = Hand(draws)
        effects = hand.start("draws", rollout_id=rollout_id)
        if attempt == 2:
            _, *effects = hand.read(Event.decision(rollout_id, 2, "w", AttemptStarted("again")))
        return str(one(effects).messages[0].content)

    assert drawn("a") == drawn("a")
    assert len({drawn("a"), drawn("b"), drawn("a", attempt=2)}) == 3


def test_a_program_receives_the_task_of_its_request() -> None:
    seen: list[Task] = []

    def looks(task: Task) -> Agent:
        seen.append(task)
        yield Finish()

    hand = Hand(looks)
    hand.start("looks", agent_config='{"depth":2}', limits=Limits(max_turns=9))

    task = one(seen)
    assert (task.prompt, task.system, task.environment) == ("Go!", "Be brief.", "maze")
    assert (task.max_turns, task.config) == (9, {"depth": 2})


# Tries


def test_a_failed_command_is_retried_with_the_next_try_and_same_seed() -> None:
    hand = Hand(asks_once)
    call = one(hand.start("asks_once"))

    again = one(hand.fail(call))

    assert (again.tries, again.position) == (1, 0)
    assert again.command_id == command_id("r", 1, 0, 1)
    assert replace(again, tries=0, command_id=call.command_id, not_after_ms=0) == replace(
        call, not_after_ms=0
    )


def test_retry_deadlines_count_from_the_last_failure() -> None:
    hand = Hand(asks_once)

    call = one(hand.start("asks_once", limits=Limits(call_timeout_s=1.5)))
    opened = hand.now_ms
    hand.now_ms += 700
    again = one(hand.fail(call))

    assert call.not_after_ms == opened + 1500
    assert again.not_after_ms == opened + 710 + 1500


@pytest.mark.parametrize("tries", [1, 2, 3])
def test_the_program_sees_the_failure_after_the_last_try(tries: int) -> None:
    hand = Hand(forgives)
    effects = hand.start("forgives", limits=Limits(max_tries=tries))

    for _ in range(tries):
        effects = hand.fail(one(effects), "expired")

    assert one(effects).body == RolloutFinished("finished", "", "", "forgave expired", 1)
    assert hand.end(one(effects)).failures == tries


@pytest.mark.parametrize("failures", [0, 1])
def test_a_busy_server_costs_no_try_up_to_a_limit(failures: int) -> None:
    hand = Hand(forgives)
    effects = hand.start("forgives", limits=Limits(max_tries=2))
    counting = Counting()
    for _ in range(failures):
        effects = hand.fail(one(effects), "expired")

    for turned_away in range(MOST_BUSY):
        effects = hand.fail(one(effects), "busy")
        assert one(effects).tries == failures + turned_away + 1
    for _ in range(2 - failures):
        effects = hand.fail(one(effects), "busy")

    assert one(effects).body.result == "forgave busy"
    assert hand.end(one(effects)).failures == 2
    ignored = [counting.take(entry.event) for entry in hand.entries]
    assert set(ignored) == {""}
    assert counting.failures == 2


def test_a_busy_server_without_retries_is_reported_to_the_program_at_once() -> None:
    hand = Hand(forgives)

    effects = hand.fail(one(hand.start("forgives")), "busy", retriable=False)

    assert one(effects).body.result == "forgave busy"


def test_a_permanent_failure_reaches_the_program_at_once() -> None:
    hand = Hand(forgives)

    effects = hand.fail(one(hand.start("forgives")), "too_long", retriable=False)

    assert one(effects).body.result == "forgave too_long"


def test_an_uncaught_effect_failure_fails_the_rollout_with_its_reason() -> None:
    hand = Hand(asks_once)

    decision = one(hand.fail(one(hand.start("asks_once")), "too_long", retriable=False))

    assert (decision.body.status, decision.body.code) == ("failed", "too_long")
    assert "raised WishFailed: too_long" in decision.body.reason


def test_a_failure_in_a_list_takes_its_answers_place() -> None:
    hand = Hand(asks_two_at_once)
    left, right = hand.start("asks_two_at_once")

    assert hand.fail(left, "gone", retriable=False) == []
    decision = one(hand.say(right, "yes"))

    assert decision.body.result == "gone: it was gone|yes"


def test_a_retried_call_keeps_its_token_limit() -> None:
    hand = Hand(asks_two_at_once)
    limits = Limits(max_tokens=100)
    left, right = hand.start("asks_two_at_once", limits=limits, sampling=Sampling(max_tokens=90))
    hand.say(left, "x" * 60)

    again = one(hand.fail(right))

    assert again.sampling == right.sampling


def test_a_lost_session_is_rebuilt_without_using_a_try() -> None:
    hand = Hand(plays_on)
    reset = one(hand.start("plays_on", limits=Limits(max_tries=1)))
    step = one(hand.show(one(hand.show(reset))))
    assert (step.index, step.history) == (1, None)

    again = one(hand.fail(step, "history_needed"))
    effects = hand.show(again, "a room again")

    assert (again.tries, again.index, again.history) == (1, 1, ("move 0",))
    assert one(effects).index == 2
    assert one(list(hand.journal.open.values())).attempt.failures == 0


def test_a_rebuilt_session_gets_its_opening_time_on_top() -> None:
    hand = Hand(plays_on)
    limits = Limits(max_tries=1, step_timeout_s=2.0, open_timeout_s=30.0)
    reset = one(hand.start("plays_on", limits=limits))
    step = one(hand.show(reset))
    again = one(hand.fail(step, "history_needed"))

    assert (reset.timeout_s, step.timeout_s, again.timeout_s) == (30.0, 2.0, 32.0)
    assert again.not_after_ms - step.not_after_ms >= 30_000
    assert one(hand.show(again)).timeout_s == 2.0


def test_a_repeated_history_request_extends_the_timeout_once() -> None:
    hand = Hand(plays_on)
    limits = Limits(max_tries=2, step_timeout_s=2.0, open_timeout_s=30.0)
    step = one(hand.show(one(hand.start("plays_on", limits=limits))))

    again = one(hand.fail(one(hand.fail(step, "history_needed")), "history_needed"))

    assert again.timeout_s == 32.0


def test_the_opening_timeout_defaults_to_the_step_timeout() -> None:
    hand = Hand(plays_on)
    reset = one(hand.start("plays_on", limits=Limits(step_timeout_s=2.0)))
    step = one(hand.show(reset))
    again = one(hand.fail(step, "history_needed"))

    assert (reset.timeout_s, step.timeout_s, again.timeout_s) == (2.0, 2.0, 2.0)


def test_a_history_request_after_the_history_was_sent_is_a_failure() -> None:
    hand = Hand(plays_on)
    step = one(hand.show(one(hand.start("plays_on", limits=Limits(max_tries=2)))))

    again = one(hand.fail(one(hand.fail(step, "history_needed")), "history_needed"))
    decision = one(hand.fail(again, "history_needed"))

    assert again.tries == 2
    assert decision.body.code == "history_needed"


LONG = "word " * 220
"""More tokens than a call carries twice."""


def talks_on(task: Task) -> Agent:
    messages = [user(LONG)]
    for _ in range(task.max_turns):
        answer = yield CallModel(messages)
        messages += [answer.message, user("go on")]
    yield Finish(answer.text)


def test_a_long_prefix_is_sent_by_digest_and_whole_if_needed() -> None:
    hand = Hand(talks_on)
    first = one(hand.start("talks_on"))

    named = one(hand.say(first, "yes"))
    whole = one(hand.fail(named, "prefix_needed"))

    ids = said(first, "yes").added_ids + said(first, "yes").token_ids
    assert (first.prefix_ids, first.prefix_digest) == (b"", b"")
    assert (named.prefix_ids, named.prefix_digest) == (None, prefix_digest(ids))
    assert named.prefix_length == whole.prefix_length == len(ids) // 4
    assert (whole.prefix_ids, whole.tries, whole.body_digest) == (ids, 1, named.body_digest)
    assert one(hand.fail(whole)).prefix_ids == ids
    assert rollout_of(hand).attempt.failures == 1


def test_a_server_that_always_needs_prefixes_soon_gets_them_whole() -> None:
    hand = Hand(talks_on)
    call = one(hand.start("talks_on", limits=Limits(max_turns=40, max_tries=1)))

    asked = 0
    while isinstance(call, ModelCall):
        if call.prefix_ids is None:
            asked += 1
            call = one(hand.fail(call, "prefix_needed"))
            assert call.prefix_ids is not None
        call = one(hand.say(call, "yes"))

    assert call.body.status == "finished"
    assert 1 < asked <= 4


def test_a_prefix_given_at_the_start_is_sent_whole() -> None:
    def forks(task: Task) -> Agent:
        yield CallModel([user(LONG), user("more")], begun=Begun(1, pack_ids(range(2000))))

    call = one(Hand(forks).start("forks"))

    assert (call.prefix_ids, call.prefix_digest) == (pack_ids(range(2000)), b"")


def test_prefix_requests_for_one_call_are_bounded() -> None:
    hand = Hand(forgives)
    effects = hand.start("forgives", limits=Limits(max_tries=2))

    for _ in range(3):
        effects = hand.fail(one(effects), "prefix_needed")

    assert one(effects).body.result == "forgave prefix_needed"


# Ignored events


def test_late_and_duplicate_answers_are_ignored_and_counted() -> None:
    hand = Hand()
    reset = one(hand.start())
    call = one(hand.show(reset, "a hall"))

    assert hand.show(reset, "another hall") == []
    assert hand.fail(reset) == []
    step = one(hand.say(call, "north"))
    assert hand.say(call, "south") == []

    assert step.action == "north"
    assert hand.journal.ignored == {"late_or_twice": 3}


def test_an_answer_to_an_earlier_try_is_ignored() -> None:
    hand = Hand(asks_once)
    call = one(hand.start("asks_once"))
    again = one(hand.fail(call))

    assert hand.say(call, "late") == []
    assert hand.fail(call) == []

    assert one(hand.say(again, "in time")).body.result == "in time"


def test_answers_to_an_older_attempt_are_ignored() -> None:
    hand = Hand(asks_once)
    call = one(hand.start("asks_once"))
    _, again = hand.read(Event.decision("r", 2, "w", AttemptStarted("because")))

    assert hand.say(call, "late") == []

    assert one(hand.say(again, "in time")).body.result == "in time"


def test_an_answer_to_a_future_attempt_is_ignored() -> None:
    hand = Hand(asks_once)
    call = one(hand.start("asks_once"))

    assert hand.read(answer_to(replace(call, attempt=2), said(call, "early"))) == []

    assert hand.journal.ignored == {"late_or_twice": 1}


def test_events_after_the_end_are_ignored() -> None:
    hand = Hand(asks_once)
    call = one(hand.start("asks_once"))
    decision = one(hand.say(call, "yes"))
    hand.end(decision)

    assert hand.say(call, "no") == []
    assert hand.read(decision) == []
    assert hand.read(Event.decision("r", 2, "z", AttemptStarted("zombie"))) == []

    assert hand.journal.ignored == {"not_open": 3}


def test_the_first_of_two_terminal_events_is_the_end() -> None:
    hand = Hand(asks_once)
    decision = one(hand.say(one(hand.start("asks_once")), "yes"))

    trajectory, *_ = hand.read(Event.decision("r", 1, "w", RolloutCancelled("enough")))

    assert trajectory.status == "cancelled"
    assert hand.read(decision) == []


def test_a_finish_of_an_older_attempt_does_not_end_the_newer_one() -> None:
    hand = Hand(asks_once)
    decision = one(hand.say(one(hand.start("asks_once")), "yes"))
    hand.read(Event.decision("r", 2, "w", AttemptStarted("because")))

    assert hand.read(decision) == []

    assert hand.journal.ignored == {"older_attempt": 1}
    assert list(hand.journal.open) == ["r"]


@given(st.permutations(range(4)), st.integers(0, 3))
def test_concurrent_answers_may_arrive_in_any_order(order: list[int], late: int) -> None:
    def four(task: Task) -> Agent:
        answers = yield [CallModel([user(str(n))]) for n in range(4)]
        yield Finish(",".join(answer.text for answer in answers))

    hand = Hand(four)
    calls = hand.start("four")

    for n in order[:-1]:
        assert hand.say(calls[n], f"to {n}") == []
        assert hand.say(calls[order[0]], "twice") == []
    decision = one(hand.say(calls[order[-1]], f"to {order[-1]}"))
    hand.say(calls[late], "late")

    assert decision.body.result == "to 0,to 1,to 2,to 3"


# Attempts


def test_a_lost_session_that_cannot_be_rebuilt_starts_a_new_attempt() -> None:
    hand = Hand(plays_on)
    step = one(hand.show(one(hand.start("plays_on"))))

    decision = one(hand.fail(step, "session_lost", retriable=False))
    assert one(list(hand.journal.open.values())).attempt.number == 1
    close, reset = hand.read(decision)

    assert (decision.body, decision.attempt) == (AttemptStarted("it was session_lost"), 2)
    assert (close.kind, close.session, close.attempt) == ("close", "main", 1)
    assert (reset.kind, reset.attempt, reset.position) == ("reset", 2, 0)
    assert reset.command_id == command_id("r", 2, 0, 0)


def test_an_attempt_starts_only_once_its_event_is_read() -> None:
    hand = Hand(plays_on)
    step = one(hand.show(one(hand.start("plays_on"))))
    decision = one(hand.fail(step, "session_lost", retriable=False))

    hand.read(decision)

    assert hand.read(decision) == []
    assert hand.read(replace(decision, attempt=4)) == []
    assert one(list(hand.journal.open.values())).attempt.number == 2


def test_an_answer_after_a_lost_session_at_its_position_is_ignored() -> None:
    hand = Hand(plays_on)
    step = one(hand.show(one(hand.start("plays_on"))))
    hand.fail(step, "session_lost", retriable=False)

    assert hand.show(step, "a zombie's room") == []

    rollout = one(list(hand.journal.open.values()))
    assert [taken.text for taken in rollout.attempt.steps_taken()] == ["a room"]


def test_a_session_lost_in_the_last_attempt_fails_the_rollout() -> None:
    hand = Hand(plays_on)
    step = one(hand.show(one(hand.start("plays_on", limits=Limits(max_attempts=1)))))

    decision = one(hand.fail(step, "session_lost", retriable=False))

    assert (decision.body.status, decision.body.code) == ("failed", "session_lost")


def test_a_new_attempt_drops_the_old_ones_answers() -> None:
    hand = Hand()
    call = one(hand.show(one(hand.start()), "hall"))
    hand.say(call, "north")

    *_, reset = hand.read(Event.decision("r", 2, "w", AttemptStarted("because")))
    call = one(hand.show(reset, "attic"))
    decision = one(hand.show(one(hand.say(call, "up")), "roof", terminated=True))
    trajectory = hand.end(decision)

    assert call.seed == call_seed("r", 2, 1) != call_seed("r", 1, 1)
    assert (trajectory.attempt, trajectory.model_calls, trajectory.sampled_tokens) == (2, 1, 2)
    assert [s.text for s in trajectory.steps or ()] == ["attic", "roof"]
    assert [m.content for m in (trajectory.sequences or ())[0].messages][1:] == ["attic", "up"]


# A program that has changed


def recorded(program: Any, **fields: object) -> tuple[Hand, ModelCall]:
    """A journal in which the first call of a program is answered, and that call."""
    hand = Hand(program)
    call = one(hand.start(program.__name__, **fields))
    hand.say(call, "yes")
    return hand, call


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [(2, AttemptStarted), (1, RolloutFinished)],
)
def test_an_answer_with_another_body_digest_breaks_the_attempt(
    attempts: int, expected: type
) -> None:
    _, call = recorded(asks_once)
    changed = Hand(changed_body)
    changed.start("changed_body", limits=Limits(max_attempts=attempts))

    decision = one(changed.say(call, "yes"))

    assert isinstance(decision.body, expected)
    assert "has the program changed?" in decision.body.reason
    if expected is RolloutFinished:
        assert (decision.body.status, decision.body.code) == ("failed", "determinism")


def test_an_answer_to_an_effect_never_made_breaks_the_attempt() -> None:
    def asks_less(task: Task) -> Agent:
        yield [CallModel([user("left")])]

    _, right = Hand(asks_two_at_once).start("asks_two_at_once")
    hand = Hand(asks_less)
    hand.start("asks_less")

    decision = one(hand.say(right, "yes"))

    assert decision.body.reason.startswith("rollout r attempt 1 position 1: ")
    assert "has made 1 effects" in decision.body.reason


def test_a_finish_before_the_journal_ends_breaks_the_attempt() -> None:
    def gives_up(task: Task) -> Agent:
        yield Finish()

    hand = Hand(gives_up)
    hand.start("gives_up")

    decision = one(hand.say(recorded(asks_once)[1], "yes"))

    assert isinstance(decision.body, AttemptStarted)


def test_an_answer_of_another_kind_breaks_the_attempt() -> None:
    hand = Hand(asks_once)
    call = one(hand.start("asks_once"))

    decision = one(hand.read(answer_to(call, EnvironmentStepped("a room"))))

    assert "answers EnvironmentStepped" in decision.body.reason
    assert "asks for CallModel" in decision.body.reason


def test_an_answer_to_a_future_try_breaks_the_attempt() -> None:
    hand = Hand(asks_once)
    call = one(hand.start("asks_once"))

    decision = one(hand.say(replace(call, tries=1), "yes"))

    assert isinstance(decision.body, AttemptStarted)


def test_a_broken_attempt_ignores_answers_until_the_next_attempt() -> None:
    hand = Hand(asks_two_at_once)
    left, right = hand.start("asks_two_at_once")
    decision = one(hand.say(replace(left, body_digest=b"?"), "yes"))

    assert hand.say(left, "yes") == []
    assert hand.say(right, "yes") == []
    _, _, again, _ = hand.read(decision)

    assert again.attempt == 2
    assert hand.say(again, "yes") == []
    assert hand.journal.ignored == {"late_or_twice": 2}


def test_a_program_with_more_effects_than_its_journal_resumes_at_its_end() -> None:
    def asks_more(task: Task) -> Agent:
        answer = yield CallModel([user(task.prompt)])
        yield CallModel([user(task.prompt), answer.message, user("and then?")])

    hand = Hand(asks_more)
    hand.start("asks_more")

    more = one(hand.say(recorded(asks_once)[1], "yes"))

    assert (more.position, more.messages) == (1, (user("and then?"),))


# Programs that go wrong


def raises_at_once(task: Task) -> Agent:
    msg = "no legs"
    raise ValueError(msg)
    yield


def leaves(task: Task) -> Agent:
    yield from ()
    raise SystemExit(3)


def closes_itself(task: Task) -> Agent:
    yield from ()
    raise GeneratorExit


def pretends(task: Task) -> Agent:
    yield from ()
    msg = "not ours to raise"
    raise DeterminismError(msg)


class Mute(Exception):
    def __str__(self) -> str:
        msg = "cannot speak"
        raise RuntimeError(msg)


def raises_mute(task: Task) -> Agent:
    yield from ()
    raise Mute


def raises_unwritable(task: Task) -> Agent:
    yield from ()
    msg = "half a pair: \ud800"
    raise ValueError(msg)


def raises_a_wish(code: object) -> Any:
    def program(task: Task) -> Agent:
        yield from ()
        failed = WishFailed("box_died", "it was not")
        failed.code = code  # type: ignore[assignment]
        if code is None:
            del failed.code
        raise failed

    program.__name__ = f"raises_a_wish_{type(code).__name__}"
    return program


@pytest.mark.parametrize(
    "program",
    [
        raises_at_once, leaves, closes_itself, pretends, raises_mute, raises_unwritable,
        raises_a_wish(None), raises_a_wish(3), raises_a_wish(object()),
    ],
)  # fmt: skip
def test_a_program_that_raises_ends_only_its_own_rollout(program: Any) -> None:
    hand = Hand(program, asks_once)
    call = one(hand.start("asks_once", rollout_id="other"))

    decision = one(hand.start(program.__name__))

    assert (decision.body.status, decision.body.code) == ("failed", "raised")
    assert f"program {program.__name__!r} raised" in decision.body.reason
    assert CODEC.decode(CODEC.encode("events", decision), Event).body.code == "raised"
    assert hand.end(decision).status == "failed"
    assert hand.say(call, "yes")


class Shy:
    def __repr__(self) -> str:
        msg = "do not look"
        raise RuntimeError(msg)


@pytest.mark.parametrize(
    "rubbish",
    [
        None, "text", 5, Shy(), [], [Finish()], [CallModel([user("x")]), "and"],
        CallModel([]), CallModel(["not a message"]), CallModel("text"), CallModel(None),
        CallModel([Message("user", None)]), CallModel([Message("user", 5)]),
        CallModel([user("\ud800")]), CallModel([user("x")], policy_id=5),
        CallModel([user("x")], tools=[]), CallModel([user("x")], sampling={"top_k": 3}),
        CallModel([user("x")], sampling=Sampling(max_tokens=2**40)),
        Reset(seed="one"), Reset(seed=2**70), Reset(environment=5), Reset(session=None),
        Reset(environment_config={"size": 3}), Step("before its reset"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_program_that_yields_no_effect_ends_its_rollout(rubbish: object) -> None:
    def yields_rubbish(task: Task) -> Agent:
        yield rubbish  # type: ignore[misc]

    hand = Hand(yields_rubbish)

    decision = one(hand.start("yields_rubbish"))

    assert (decision.body.status, decision.body.code) == ("failed", "rubbish")
    CODEC.encode("events", decision)
    assert hand.end(decision).code == "rubbish"


def test_one_bad_effect_withdraws_the_others_of_its_list() -> None:
    def half(task: Task) -> Agent:
        yield [CallModel([user("x")]), Reset(), Step("nowhere", "elsewhere")]

    hand = Hand(half)
    decision = one(hand.start("half"))
    rollout = rollout_of(hand)

    assert decision.body.code == "rubbish"
    assert rollout.resend() == [decision]
    assert rollout.overdue(hand.now_ms + 200_000) == []
    trajectory = one(hand.read(decision))
    assert (trajectory.model_calls, decision.body.positions) == (0, 0)


@pytest.mark.parametrize("action", ["\ud800", None, 5])
def test_an_unencodable_action_ends_the_rollout(action: Any) -> None:
    def acts(task: Task) -> Agent:
        yield Reset()
        yield Step(action)

    hand = Hand(acts)

    decision = one(hand.show(one(hand.start("acts"))))

    assert decision.body.code == "rubbish"


def no_generator(task: Task) -> Any:
    return [CallModel([user("x")])]


async def a_coroutine(task: Task) -> Any:
    return CallModel([user("x")])


def takes_nothing() -> Agent:  # type: ignore[return]
    yield Finish()


@pytest.mark.parametrize(
    ("program", "code"),
    [(no_generator, "rubbish"), (a_coroutine, "raised"), (takes_nothing, "raised")],
)
def test_a_program_that_is_no_generator_fails_its_rollout(program: Any, code: str) -> None:
    hand = Hand(program)

    decision = one(hand.start(program.__name__))
    hand.end(decision)

    assert (decision.body.status, decision.body.code) == ("failed", code)


@pytest.mark.parametrize(
    "name",
    ["nobody", "tests.support.broken_module:program", "json:nothing", "json:__name__"],
)
def test_an_unknown_program_ends_its_rollout(name: str) -> None:
    journal = Journal(0, replace(world_of({}), program_of=program_of), "w")
    body = RolloutStarted(request(agent=name), 0, 0)

    decision = one(journal.apply_event(Event.decision("r", 1, "w", body), 0, 1).outputs)

    assert (decision.body.status, decision.body.code) == ("failed", "unknown_program")
    assert name.partition(":")[0] in decision.body.reason


def test_a_custom_program_is_named_by_module_and_function() -> None:
    assert program_of("tests.journals.programs:stubborn") is DICED["stubborn"]


def test_a_program_ends_with_its_generator() -> None:
    def falls_off(task: Task) -> Agent:
        yield CallModel([user("x")])

    hand = Hand(falls_off)

    decision = one(hand.say(one(hand.start("falls_off")), "yes"))

    assert decision.body == RolloutFinished("finished", positions=1)


def test_a_result_too_large_for_the_journal_fails_the_rollout() -> None:
    def verbose(task: Task) -> Agent:
        yield Finish("x" * 300_000)

    decision = one(Hand(verbose).start("verbose"))

    assert (decision.body.status, decision.body.code) == ("failed", "result_too_large")


def test_a_result_that_is_no_string_is_written_as_its_repr() -> None:
    def counts(task: Task) -> Agent:
        yield Finish({"n": 3})  # type: ignore[arg-type]

    assert one(Hand(counts).start("counts")).body.result == "{'n': 3}"


def test_a_guard_may_end_a_stuck_program() -> None:
    @contextmanager
    def impatient() -> Iterator[None]:
        yield
        msg = "did not come back within 5 s"
        raise ProgramFailed("stuck", msg)

    hand = Hand(asks_once, guard=impatient())

    decision = one(hand.start("asks_once"))

    assert (decision.body.status, decision.body.code) == ("failed", "stuck")


def test_a_once_stuck_program_has_the_same_trajectory_when_it_is_replayed() -> None:
    class Stuck:
        turns = 0

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None:
            self.turns += 1
            if self.turns == 3:
                msg = "did not come back within 5 s"
                raise ProgramFailed("stuck", msg)

    hand = Hand(guard=Stuck())
    call = one(hand.show(one(hand.start())))
    decision = one(hand.say(call, "north"))
    trajectory = hand.end(decision)
    assert trajectory.code == "stuck"

    # The same program, and one that would have asked the policy next.
    for guard in (None, Stuck()):
        again = Hand(guard=guard)
        *_, effects = [again.read(entry.event) for entry in hand.entries]
        assert CODEC.encode("t", effects[0]) == CODEC.encode("t", trajectory)


def test_a_generator_that_refuses_to_close_is_abandoned() -> None:
    def clings(task: Task) -> Agent:
        while True:
            try:
                yield CallModel([user("x")])
            except GeneratorExit:
                yield CallModel([user("never")])

    hand = Hand(clings)
    hand.start("clings")

    trajectory = one(hand.read(one(list(hand.journal.open.values())).cancelled("enough"))[:1])

    assert (trajectory.status, trajectory.failures) == ("cancelled", 0)


# Limits


def test_a_program_may_call_the_policy_up_to_its_turn_limit() -> None:
    def chats(task: Task) -> Agent:
        messages = [user("x")]
        while True:
            answer = yield CallModel(messages)
            messages = [*messages, answer.message, user("more")]

    hand = Hand(chats)
    effects = hand.start("chats", limits=Limits(max_turns=3))
    for _ in range(3):
        effects = hand.say(one(effects), "yes")

    trajectory = hand.end(one(effects))
    assert (trajectory.status, trajectory.code) == ("failed", "turn_limit")
    assert trajectory.model_calls == 3


def test_a_program_that_never_calls_the_policy_hits_the_position_limit() -> None:
    hand = Hand(plays_on)
    effects = hand.start("plays_on", limits=Limits(max_turns=1))
    steps = 0
    while isinstance(effects[0], EnvironmentStep):
        effects = hand.show(effects[0])
        steps += 1

    assert one(effects).body.code == "position_limit"
    assert steps == 16


@pytest.mark.parametrize("most", [1, 5, 40])
def test_limits_may_cap_the_number_of_effects(most: int) -> None:
    hand = Hand(plays_on)
    effects = hand.start("plays_on", limits=Limits(max_turns=1, max_wishes=most))
    steps = 0
    while isinstance(effects[0], EnvironmentStep):
        effects = hand.show(effects[0])
        steps += 1

    assert one(effects).body.code == "position_limit"
    assert steps == most


def test_the_token_limit_is_a_budget_of_the_attempt() -> None:
    def chats(task: Task) -> Agent:
        for n in range(9):
            yield CallModel([user(str(n))])

    hand = Hand(chats)
    first = one(hand.start("chats", limits=Limits(max_tokens=10), sampling=Sampling(max_tokens=8)))
    second = one(hand.say(first, "x" * 8))
    decision = one(hand.say(second, "xx"))

    assert (first.sampling.max_tokens, second.sampling.max_tokens) == (8, 2)
    assert (decision.body.status, decision.body.code) == ("failed", "token_limit")


def test_a_sequence_records_each_sampling_if_one_differed_from_the_request() -> None:
    hand = Hand(cold)
    asked = Sampling(max_tokens=5)
    [reset] = hand.start("cold", sampling=asked)
    [first] = hand.show(reset)
    [step] = hand.say(first, "left")
    [second] = hand.show(step)
    [step] = hand.say(second, "right")
    [end] = hand.show(step, terminated=True)

    trajectory = hand.end(end)

    assert trajectory.sequences
    assert (first.sampling, second.sampling) == (asked, COLD)
    assert [each.samplings for each in trajectory.sequences] == [(asked, COLD)]


def test_a_sequence_sampled_as_requested_records_no_samplings() -> None:
    def chats(task: Task) -> Agent:
        for n in range(2):
            yield CallModel([user(str(n))], sampling=Sampling(temperature=0.7, stop=("x",)))

    hand = Hand(chats)
    asked = Sampling(temperature=0.7, max_tokens=8)
    [call] = hand.start("chats", limits=Limits(max_tokens=10), sampling=asked)
    [call] = hand.say(call, "x" * 8)
    [end] = hand.say(call, "xx")

    trajectory = hand.end(end)

    assert trajectory.sequences
    assert [each.samplings for each in trajectory.sequences] == [(), ()]


def test_a_pinned_version_applies_only_to_calls_of_the_requests_policy() -> None:
    def chats(task: Task) -> Agent:
        yield [CallModel([user("a")]), CallModel([user("b")], policy_id="judge")]

    ours, theirs = Hand(chats).start("chats", policy_version=5)

    assert (ours.policy_version, theirs.policy_version) == (5, -1)


def test_each_policy_has_its_own_version_requirements() -> None:
    def chats(task: Task) -> Agent:
        asked = [CallModel([user("a")], policy_id=name) for name in ("", "judge", "critic")]
        yield asked

    least, only = {"judge": 2}, {"judge": 7}
    wished = {"min_policy_versions": least, "policy_versions": only}
    calls = Hand(chats).start("chats", min_policy_version=5, **wished)

    asked = [(call.min_policy_version, call.policy_version) for call in calls]
    assert asked == [(5, -1), (2, 7), (0, -1)]


def test_the_limits_of_the_start_apply() -> None:
    hand = Hand(asks_once)
    limits = Limits(max_tries=2, max_turns=1, call_timeout_s=7.0)
    call = one(hand.start("asks_once", limits=limits))

    again = one(hand.fail(call))

    assert call.not_after_ms == hand.now_ms - 10 + 7000
    assert one(hand.fail(again)).body.status == "failed"


# Deadlines and cancelling


def rollout_of(hand: Hand) -> Any:
    return one(list(hand.journal.open.values()))


def test_a_command_past_its_deadline_is_reported_once_and_retried() -> None:
    hand = Hand(asks_once)
    call = one(hand.start("asks_once", limits=Limits(call_timeout_s=2.0)))
    rollout, opened = rollout_of(hand), hand.now_ms

    assert rollout.overdue(opened + 4999) == []
    late = one(rollout.overdue(opened + 5000))
    assert rollout.overdue(opened + 9000) == []
    again = one(hand.read(late))

    assert late.body == CallFailed("deadline", "no answer within 5 s", True)
    assert (late.command_id, late.body_digest) == (call.command_id, call.body_digest)
    assert (again.tries, again.not_after_ms) == (1, hand.now_ms + 2000)
    assert rollout.overdue(hand.now_ms + 4999) == []
    assert one(rollout.overdue(hand.now_ms + 5000)).tries == 1


@given(st.floats(0.01, 3600.0), st.floats(0.01, 3600.0))
def test_a_call_gets_its_time_twice_before_it_is_overdue(call_s: float, step_s: float) -> None:
    hand = Hand()
    limits = Limits(call_timeout_s=call_s, step_timeout_s=step_s, rollout_timeout_s=1e6)
    reset = one(hand.start(limits=limits))
    rollout = rollout_of(hand)

    assert rollout.overdue(reset.not_after_ms + int(step_s * 1000)) == []
    call = one(hand.show(reset))
    assert rollout.overdue(call.not_after_ms + int(call_s * 1000)) == []


def test_an_answer_before_the_deadline_event_wins() -> None:
    hand = Hand(asks_once)
    call = one(hand.start("asks_once", limits=Limits(call_timeout_s=2.0)))
    late = one(rollout_of(hand).overdue(hand.now_ms + 5000))

    hand.say(call, "just in time")

    assert hand.read(late) == []


def test_steps_and_calls_have_separate_deadlines() -> None:
    hand = Hand()
    limits = Limits(call_timeout_s=9.0, step_timeout_s=1.0)
    reset = one(hand.start(limits=limits))
    rollout = rollout_of(hand)

    assert one(rollout.overdue(hand.now_ms + 2500)).position == reset.position
    hand.show(reset)
    assert rollout.overdue(hand.now_ms + 22_499) == []
    assert one(rollout.overdue(hand.now_ms + 22_500)).position == 1


def test_a_rollout_deadline_is_reported_once_and_ends_the_rollout() -> None:
    hand = Hand()
    reset = one(hand.start(limits=Limits(rollout_timeout_s=60.0, step_timeout_s=999.0)))
    rollout, began = rollout_of(hand), hand.now_ms
    hand.show(reset)

    assert rollout.overdue(began + 59_999) == []
    passed = one(rollout.overdue(began + 60_000))
    assert rollout.overdue(began + 99_000) == []
    trajectory, *courtesy = hand.read(passed)

    assert passed.body == DeadlinePassed(60.0)
    assert (trajectory.status, trajectory.code) == ("timed_out", "deadline")
    assert [c.kind for c in courtesy] == ["close", "abort"]


def test_a_cancelled_rollout_closes_its_open_sessions_and_calls() -> None:
    hand = Hand()
    call = one(hand.show(one(hand.start())))

    trajectory, close, abort = hand.read(rollout_of(hand).cancelled("enough", "me"))

    assert (trajectory.status, trajectory.reason) == ("cancelled", "enough")
    assert (trajectory.model_calls, trajectory.sequences) == (0, ())
    assert (close.kind, close.session) == ("close", "main")
    assert (abort.kind, abort.command_id, abort.messages) == ("abort", call.command_id, ())
    assert abort.prefix_ids is None


def test_a_terminated_environment_is_not_closed_again() -> None:
    hand = Hand()
    step = one(hand.say(one(hand.show(one(hand.start()))), "x"))
    decision = one(hand.show(step, terminated=True))

    assert [type(effect) for effect in hand.read(decision)] == [Trajectory]


# The chain of starts


def started(
    rollout_id: str, from_offset: int, offset: int, body: Any = None, **fields: Any
) -> Event:
    body = body or RolloutStarted(request(rollout_id, "asks_once"), from_offset, offset)
    return Event.decision(rollout_id, 1, "w", body)


def opened(hand: Hand) -> list[str]:
    return list(hand.journal.open)


def test_a_redelivered_request_never_starts_twice() -> None:
    hand = Hand(asks_once)
    call = one(hand.read(started("a", 0, 0)))
    hand.read(started("b", 1, 1))

    assert hand.read(started("a", 0, 0)) == []
    hand.end(one(hand.say(call, "yes")))
    assert hand.read(started("a", 0, 0)) == []
    assert hand.read(started("b", 0, 1)) == []

    assert hand.journal.ignored == {"started_before": 3}
    assert (opened(hand), hand.journal.last) == (["b"], 1)


def test_a_zombies_start_after_a_gap_is_ignored() -> None:
    hand = Hand(asks_once)
    hand.read(started("a", 0, 0))

    assert hand.read(started("c", 2, 2)) == []  # a zombie that stood behind b
    hand.read(started("b", 1, 1))
    hand.read(started("c", 2, 2))

    assert opened(hand) == ["a", "b", "c"]
    assert hand.journal.ignored == {"start_after_gap": 1}


def test_request_offsets_may_have_holes() -> None:
    hand = Hand(asks_once)

    for event in (started("a", 0, 3), started("b", 4, 4), started("c", 5, 9)):
        hand.read(event)

    assert (opened(hand), hand.journal.last) == (["a", "b", "c"], 9)


def test_the_first_start_counts_if_none_came_before() -> None:
    hand = Hand(asks_once)

    hand.read(started("a", 70, 77))

    assert (opened(hand), hand.journal.last) == (["a"], 77)


def test_a_fold_that_knows_the_last_start_checks_the_next_one() -> None:
    hand = Hand(asks_once, last=76)

    assert hand.read(started("late", 70, 76)) == []
    assert hand.read(started("gap", 78, 78)) == []
    hand.read(started("next", 77, 80))

    assert opened(hand) == ["next"]


def test_a_second_start_of_an_open_rollout_only_extends_the_chain() -> None:
    hand = Hand(asks_once)
    hand.read(started("a", 0, 0))

    assert hand.read(started("a", 1, 1)) == []
    hand.read(started("b", 2, 2))

    assert (opened(hand), hand.journal.last) == (["a", "b"], 2)
    assert hand.journal.ignored == {"already_open": 1}


def test_a_refused_request_yields_a_trajectory_and_keeps_the_chain() -> None:
    hand = Hand(asks_once)
    asked = request("a", "unheard-of")
    refused = RolloutRefused("refused", "unknown program", 0, 0, asked)

    trajectory = one(hand.read(started("a", 0, 0, refused)))
    hand.read(started("b", 1, 1))

    assert (trajectory.status, trajectory.code) == ("refused", "refused")
    assert (trajectory.request, trajectory.sequences, trajectory.steps) == (asked, (), ())
    assert (trajectory.reason, trajectory.first_offset) == ("unknown program", 0)
    assert opened(hand) == ["b"]
    assert hand.read(started("a", 0, 0, refused)) == []


def test_unreadable_bytes_are_refused_without_a_request() -> None:
    hand = Hand()
    refused = RolloutRefused("unreadable", "no magic", 0, 0)

    trajectory = one(hand.read(started("unreadable-3-0", 0, 0, refused)))

    assert trajectory.request is None
    CODEC.encode("t", trajectory)


# The low watermark


def at(hand: Hand, commit: int) -> tuple[int, int | None]:
    begin = hand.journal.watermark(commit)
    assert begin.stragglers == ()
    return begin.low, begin.last


def test_the_low_watermark_is_the_first_event_of_the_oldest_open_rollout() -> None:
    hand = Hand(asks_once)
    for number, name in enumerate("abc"):
        hand.read(started(name, number, number))
    call = hand.journal.open["a"].resend()[0]
    assert at(hand, 3) == (0, None)

    decision = one(hand.say(call, "yes"))
    assert at(hand, 4) == (0, None)
    hand.read(decision)

    assert at(hand, 5) == (1, 0)


def test_a_rollout_that_ended_above_the_commit_counts_as_open() -> None:
    hand = Hand(asks_once)
    decision = one(hand.say(one(hand.read(started("a", 0, 0))), "yes"))
    hand.read(decision)

    assert at(hand, 2) == (0, None)
    assert at(hand, 3) == (3, 0)


def test_the_low_watermark_is_the_commit_if_no_rollout_is_open() -> None:
    hand = Hand(asks_once, last=41)

    assert at(hand, 17) == (17, 41)


def test_no_fold_begins_between_two_starts_of_one_open_rollout() -> None:
    """A reader that began at `y` would take the second start of `x` for its first."""
    hand = Hand(asks_once)
    hand.read(started("x", 0, 0))
    _, call = hand.read(Event.decision("x", 2, "w", AttemptStarted("because")))
    hand.read(started("y", 1, 1))
    hand.read(started("x", 2, 2))
    hand.read(one(hand.say(call, "yes")))

    begin = hand.journal.watermark(6)
    again, _ = fold(hand.entries, world_of({"asks_once": asks_once}), begin)

    assert begin.low == 0
    assert list(again.open) == opened(hand) == ["y"]


def test_outstanding_commands_are_resent_unchanged() -> None:
    hand = Hand(asks_two_at_once)
    left, right = hand.start("asks_two_at_once")
    again = one(hand.fail(left))
    rollout = rollout_of(hand)

    assert rollout.resend() == [again, right]
    hand.say(right, "yes")
    decision = one(hand.say(again, "yes"))
    assert rollout.resend() == [decision]


# Laws, by dice

SEEDS = st.integers(0, 2**32)


@settings(max_examples=examples(150), deadline=None)
@given(SEEDS)
def test_folding_twice_gives_the_same_result(seed: int) -> None:
    dice = Dice(Random(seed)).live()

    _, first = fold(dice.entries, dice.world)
    _, second = fold(dice.entries, dice.world)

    assert first == second == dice.outputs
    assert trajectories(first) == trajectories(second)


@settings(max_examples=examples(150), deadline=None)
@given(SEEDS)
def test_ignored_events_do_not_affect_the_fold(seed: int) -> None:
    dice = Dice(Random(seed), noise=0.5).live()

    _, effects = fold(dice.counted, dice.world)

    assert trajectories(effects) == trajectories(dice.outputs)


@settings(max_examples=examples(150), deadline=None)
@given(SEEDS)
def test_every_counted_start_has_exactly_one_end(seed: int) -> None:
    dice = Dice(Random(seed), rollouts=5).live()

    ends = [effect for _, effect in dice.outputs if isinstance(effect, Trajectory)]

    starts = dice.rollouts - dice.journal.ignored["already_open"]
    assert len(ends) == starts
    assert dice.journal.last == dice.rollouts - 1
    for end in ends:
        assert end.model_calls >= sum(len(s.messages) > 0 for s in end.sequences or ())


@settings(max_examples=examples(150), deadline=None)
@given(SEEDS)
def test_a_fold_from_any_commit_equals_a_full_fold(seed: int) -> None:
    """With or without named stragglers, from any earlier commit."""
    dice, random = Dice(Random(seed), rollouts=6).live(), Random(seed)
    few = random.choice((0, 1, 5, FEW_RECORDS))
    journal, commit = Journal(0, dice.world, "owner", few=few), 0

    for entry in dice.entries:
        if journal.needs(entry.offset, entry.event.rollout_id.encode()):
            journal.apply_event(entry.event, entry.offset, entry.at_ms)
        if random.random() < 0.2:
            commit = random.randint(commit, entry.offset + 1)
            begin = read_watermark(journal.watermark(commit).write())
            assert begin is not None
            _, effects = fold(dice.entries, dice.world, begin)

            after = [effect for effect in effects if effect[0] >= commit]
            assert after == [effect for effect in dice.outputs if effect[0] >= commit]
            if random.random() < 0.3:
                journal = Journal(0, dice.world, "owner", begin, few=few)
                for known in dice.entries[: dice.entries.index(entry) + 1]:
                    key = known.event.rollout_id.encode()
                    if known.offset >= begin.low and journal.needs(known.offset, key):
                        journal.apply_event(known.event, known.offset, known.at_ms)


def test_one_old_rollout_does_not_force_rereading_of_later_records() -> None:
    hand = Hand(asks_once)
    hand.journal.few = 10
    hand.read(started("old", 0, 0))
    for number in range(1, 40):
        hand.read(one(hand.say(one(hand.read(started(f"r{number}", number, number))), "yes")))
    begin = hand.journal.watermark(hand.entries[-1].offset + 1)

    assert begin.stragglers == (0,)
    assert begin.bulk_low >= hand.entries[-1].offset - 10
    again, _ = fold(hand.entries, world_of({"asks_once": asks_once}), begin)
    assert list(again.open) == ["old"]
    assert again.last == hand.journal.last


@settings(max_examples=examples(100), deadline=None)
@given(SEEDS)
def test_a_conversation_is_only_ever_extended(seed: int) -> None:
    dice = Dice(Random(seed), noise=0.2).live()

    known: dict[tuple[str, int, int], bytes] = {}
    for _, effect in dice.outputs:
        samples = isinstance(effect, ModelCall) and effect.sampling.max_tokens
        if samples and effect.kind == "sample":
            place = effect.rollout_id, effect.attempt, effect.sequence
            assert (effect.prefix_ids or b"").startswith(known.get(place, b""))
            known[place] = effect.prefix_ids or b""
        elif isinstance(effect, RolloutFinished | Trajectory):
            for key in [key for key in known if key[0] == effect.rollout_id]:
                del known[key]


@settings(max_examples=examples(100), deadline=None)
@given(SEEDS)
def test_a_retry_differs_from_its_command_only_in_its_id(seed: int) -> None:
    dice = Dice(Random(seed), rollouts=2, noise=0.0).live()

    asked: dict[tuple[Any, ...], Any] = {}
    for _, effect in dice.outputs:
        if isinstance(effect, ModelCall) and effect.kind == "sample":
            place = effect.rollout_id, effect.attempt, effect.position
            bare = replace(effect, tries=0, command_id=b"", not_after_ms=0)
            assert asked.setdefault(place, bare) == bare
        elif isinstance(effect, Trajectory):
            asked = {k: v for k, v in asked.items() if k[0] != effect.rollout_id}


def test_ids_seeds_and_digests_never_change() -> None:
    """Ids and seeds are part of the wire: they must never change."""
    assert command_id("r", 1, 0, 0).hex() == GOLDEN["command_id"]
    assert call_seed("r", 1, 0) == GOLDEN["seed"]
    call = one(Hand(asks_once).start("asks_once"))
    reset = one(Hand(plays_on).start("plays_on"))
    assert call.body_digest.hex() == GOLDEN["call_digest"]
    assert reset.body_digest.hex() == GOLDEN["reset_digest"]


GOLDEN: dict[str, Any] = {
    "command_id": "338398882ddfd9b81e5afd31289a6f0a",
    "seed": 8595143758598399438,
    "call_digest": "8679b5442c622310a6560d58924543fa",
    "reset_digest": "55c60c51eeb4b6eed1680811035146ce",
}


def test_effect_answers_expose_text_and_done() -> None:
    assert ModelAnswer(Message("assistant", "hi"), "stop").text == "hi"
    assert EnvironmentAnswer("x", 0.0, False, True, "{}").done
    assert not EnvironmentAnswer("x", 0.0, False, False, "{}").done
