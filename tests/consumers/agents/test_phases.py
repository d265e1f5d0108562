"""The phases of a rollout, from its journal alone."""

from rollcall.consumers.agents.fold.rollout import Output
from rollcall.consumers.history.reading.counting import Counting
from rollcall.consumers.history.rollouts.rollout_story import Entry, Story
from rollcall.consumers.history.rollouts.timing import phases_of
from rollcall.schemas.messages import (
    Event,
    Limits,
    RolloutCancelled,
    RolloutStarted,
    RolloutTimers,
    Trajectory,
)
from tests.support.journals import Hand, request


class Timed(Hand):
    """A journal with a clock that the test sets."""

    def begin(self, requested_ms: int, **fields: object) -> list[Output]:
        """A start with the time of its request."""
        body = RolloutStarted(request(**fields), 0, 0, requested_ms=requested_ms)
        return self.read(Event.decision("r", 1, "owner", body))

    def cancel(self) -> Trajectory:
        trajectory = self.read(Event.decision("r", 1, "owner", RolloutCancelled("enough")))[0]
        assert isinstance(trajectory, Trajectory)
        return trajectory

    def story(self) -> Story:
        counting, story = Counting(), Story("r", 3)
        for each in self.entries:
            entry = Entry(each.offset, each.at_ms, each.event, counting.take(each.event))
            story.entries.append(entry)
        return story


def test_a_rollout_is_timed_from_its_request_to_its_end() -> None:
    hand = Timed()
    [reset] = hand.begin(hand.now_ms - 490)
    hand.now_ms += 4990  # it comes 5 s after the start
    [call] = hand.show(reset, "a room", waited_s=3.0, took_s=1.5)
    [step] = hand.say(call, "left")
    hand.now_ms += 980
    [end] = hand.show(step, "out", terminated=True, index=1, waited_s=0.1, took_s=0.8)

    trajectory = hand.end(end)

    assert trajectory.timers == RolloutTimers(0.5, 3.5, 1.5, 1.01)
    assert phases_of(hand.story()) == trajectory.timers


def test_openings_count_as_start_time_and_the_first_ends_scheduling() -> None:
    def opens_two(task):  # type: ignore[no-untyped-def]
        from rollcall.consumers.agents.effects import Finish, Reset

        yield [Reset(session="a"), Reset(session="b")]
        yield Finish()

    hand = Timed(opens_two)
    first, second = hand.begin(hand.now_ms, agent="opens_two")
    hand.now_ms += 990
    hand.show(second, session="b", took_s=0.25)
    hand.now_ms += 1990
    [end] = hand.show(first, session="a", took_s=2.0)

    timers = hand.end(end).timers

    assert timers == RolloutTimers(0.01, 0.75, 2.25, 2.01)


def test_only_the_last_attempt_is_timed() -> None:
    hand = Timed()
    [reset] = hand.begin(hand.now_ms, limits=Limits(max_attempts=2))
    [call] = hand.show(reset, took_s=5.0)
    [step] = hand.say(call, "left")
    [anew] = hand.fail(step, "session_lost", retriable=False)
    hand.now_ms += 60_000
    assert isinstance(anew, Event)
    *_, reset = hand.read(anew)
    hand.now_ms += 990
    [call] = hand.show(reset, took_s=0.4)

    timers = hand.cancel().timers

    assert timers == RolloutTimers(0.01, 0.6, 0.4, 0.01)
    assert phases_of(hand.story()) == timers


def test_a_rollout_without_an_environment_has_only_a_submit_timer() -> None:
    hand = Timed()
    hand.begin(hand.now_ms - 90)

    trajectory = hand.cancel()

    assert trajectory.timers == RolloutTimers(0.1)
    assert phases_of(hand.story()) == trajectory.timers


def test_a_journal_without_times_has_no_timers() -> None:
    hand = Timed()
    [reset] = hand.begin(0)
    hand.show(reset)

    assert hand.cancel().timers is None
    assert phases_of(hand.story()) is None


def test_a_journal_with_some_times_yields_the_timers_it_knows() -> None:
    hand = Timed()
    [reset] = hand.begin(0)
    hand.show(reset, took_s=0.002)

    assert hand.cancel().timers == RolloutTimers(None, 0.008, 0.002, 0.01)


def test_differing_broker_clocks_give_no_negative_time() -> None:
    hand = Timed()
    [reset] = hand.begin(hand.now_ms + 5000)
    hand.show(reset, took_s=7.0)
    hand.now_ms -= 60_000

    assert hand.cancel().timers == RolloutTimers(0.0, 0.0, 7.0, 0.0)


def test_a_duplicate_answer_is_timed_once() -> None:
    hand = Timed()
    [reset] = hand.begin(hand.now_ms)
    hand.now_ms += 990
    hand.show(reset, took_s=0.25)
    hand.show(reset, took_s=9.0)

    assert hand.cancel().timers == RolloutTimers(0.01, 0.75, 0.25, 0.02)
