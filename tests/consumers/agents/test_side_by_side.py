"""Concurrent effects: one per session at a time, and one token budget for all calls."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall.consumers.agents.effects import (
    Agent,
    AsCompleted,
    CallModel,
    Finish,
    Reset,
    Step,
    Task,
    WishFailed,
    user,
)
from rollcall.schemas.messages import RULES, Limits, ModelCall, Sampling, Trajectory
from rollcall.schemas.packed import pack_ids, pack_logprobs
from tests.support.journals import Hand, answer_to, fold, said, world_of
from tests.support.tiers import examples

SESSIONS = st.lists(st.sampled_from(["left", "right", "main"]), min_size=1, max_size=5)


def answered(call: ModelCall, tokens: int) -> Any:
    """An answer of this many tokens, or of as many as the call allows."""
    tokens = max(1, min(tokens, call.sampling.max_tokens))
    body = said(call, "yes")
    numbers = {"token_ids": pack_ids([1] * tokens), "versions": pack_ids([0] * tokens)}
    logprobs = pack_logprobs([0.0] * tokens)
    return answer_to(call, replace(body, logprobs=logprobs, **numbers))


@given(SESSIONS, st.booleans(), st.booleans())
def test_two_effects_of_one_session_are_never_open_at_once(
    sessions: list[str], beside: bool, again: bool
) -> None:
    def acts(task: Task) -> Agent:
        yield [Reset(name) for name in ("left", "right", "main")]
        if beside:
            yield AsCompleted([Step("go", "main"), CallModel([user("x")])])
        yield [Reset(name) if again else Step("go", name) for name in sessions]

    hand = Hand(acts, rules=RULES)
    effects = hand.start("acts")
    for reset in effects:
        effects = hand.show(reset)
    if beside:
        effects = hand.say(next(each for each in effects if isinstance(each, ModelCall)), "x")

    open_ = [*sessions, "main"] if beside else sessions
    if len(set(open_)) == len(open_):
        assert len(effects) == len(sessions)
    else:
        [decision] = effects
        assert (decision.body.status, decision.body.code) == ("failed", "rubbish")  # type: ignore[union-attr]
        assert "has two effects of session" in decision.body.reason  # type: ignore[union-attr]


TURNS = st.lists(
    st.tuples(st.integers(1, 6), st.booleans(), st.integers(0, 40)), min_size=1, max_size=6
)
"""So many calls, whether the program waits for each of them, and the tokens that each asks for."""


@settings(max_examples=examples(60), deadline=None)
@given(TURNS, st.integers(1, 60), st.integers(0, 2**32), st.integers(1, 60))
def test_concurrent_calls_never_exceed_their_token_budget(
    turns: list[tuple[int, bool, int]], budget: int, seed: int, most: int
) -> None:
    def asks(task: Task) -> Agent:
        for number, (count, waits, tokens) in enumerate(turns):
            how = Sampling(max_tokens=tokens) if tokens else None
            calls = [CallModel([user(f"{number}/{n}")], sampling=how) for n in range(count)]
            if waits:
                yield calls
            else:
                yield AsCompleted(calls)
        yield Finish()

    dice = Random(seed)
    hand = Hand(asks, rules=RULES)
    limits = Limits(max_tokens=budget, max_turns=100)
    open_ = list(hand.start("asks", limits=limits, sampling=Sampling(max_tokens=most)))
    sampled, end = 0, None
    while open_:
        effect = open_.pop(dice.randrange(len(open_)))
        if not isinstance(effect, ModelCall):
            end = effect
            continue
        given_out = sum(each.sampling.max_tokens for each in open_ if isinstance(each, ModelCall))
        assert sampled + given_out + effect.sampling.max_tokens <= budget
        event = answered(effect, dice.randint(1, effect.sampling.max_tokens))
        sampled += len(event.body.token_ids) // 4
        open_ += hand.read(event)

    assert sampled <= budget
    assert end is not None
    trajectory = hand.end(end)  # type: ignore[arg-type]
    assert trajectory.code in ("", "token_limit")
    _, again = fold(hand.entries, world_of({"asks": asks}))
    [folded] = [effect for _, effect in again if isinstance(effect, Trajectory)]
    assert replace(folded, journal_partition=trajectory.journal_partition) == trajectory


def test_calls_of_a_list_share_the_remaining_tokens_equally() -> None:
    def asks(task: Task) -> Agent:
        yield [CallModel([user(f"q{n}")]) for n in range(40)]
        yield Finish()

    limits, sampling = Limits(max_tokens=50, max_turns=50), Sampling(max_tokens=50)
    hand = Hand(asks, rules=RULES)
    calls = hand.start("asks", limits=limits, sampling=sampling)

    shares = [call.sampling.max_tokens for call in calls]  # type: ignore[union-attr]
    assert sum(shares) == 50
    assert set(shares) == {1, 2}

    [decision] = Hand(asks, rules=RULES).start(
        "asks", limits=Limits(max_tokens=39, max_turns=50), sampling=sampling
    )
    assert decision.body.code == "token_limit"  # type: ignore[union-attr]


def test_a_program_that_awaits_any_outcome_sees_a_call_without_tokens() -> None:
    heard: list[Any] = []

    def asks_beside(task: Task) -> Agent:
        heard.append((yield AsCompleted([CallModel([user("a")]), Reset()])))
        heard.append((yield AsCompleted([CallModel([user("b")])])))
        yield Finish()

    hand = Hand(asks_beside, rules=RULES)
    limits, sampling = Limits(max_tokens=5), Sampling(max_tokens=9)
    call, reset = hand.start("asks_beside", limits=limits, sampling=sampling)
    effects = hand.show(reset)

    assert isinstance(heard[1].outcome, WishFailed)
    assert heard[1].outcome.code == "token_limit"
    assert [type(effect).__name__ for effect in effects] == ["Event"]
    assert isinstance(call, ModelCall)
    assert call.sampling.max_tokens == 5


@pytest.mark.parametrize("rules", [0, RULES])
def test_a_journal_is_folded_by_the_rules_it_began_with(rules: int) -> None:
    def twice(task: Task) -> Agent:
        yield Reset()
        yield [Step("inc"), Step("inc")]

    hand = Hand(twice, rules=rules)
    [reset] = hand.start("twice")

    assert len(hand.show(reset)) == (1 if rules else 2)
