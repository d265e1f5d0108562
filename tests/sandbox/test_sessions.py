"""Rules of sessions: indices, cached answers, rebuilding, attempts, partitions, age."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.sandbox.environment import Observation
from rollcall.sandbox.run_inline import run_inline
from rollcall.sandbox.sessions import Sessions as Waiting
from rollcall.schemas.answer_cache import AnswerCache
from rollcall.schemas.errors import Unavailable, WorkFailed
from rollcall.schemas.ids import command_id
from rollcall.schemas.messages import EnvironmentStep, EnvironmentStepped
from tests.support.counting_environment import Counting
from tests.support.lake import LAKE_ANY_START


class Sessions(Waiting):
    """Sessions of environments that do not wait."""

    def handle(self, step: EnvironmentStep, **where: Any) -> EnvironmentStepped:  # type: ignore[override]
        return run_inline(super().handle(step, **where))

    def drop(self, partition: int) -> int:  # type: ignore[override]
        return run_inline(super().drop(partition))

    def reap(self, now: float, lease_s: float) -> int:  # type: ignore[override]
        return run_inline(super().reap(now, lease_s))

    def close(self) -> None:  # type: ignore[override]
        run_inline(super().close())


class World:
    """Sessions over counting environments, which are kept for inspection."""

    def __init__(self, *, replayable: bool = True) -> None:
        self.made: list[Counting] = []
        self.replayable = replayable
        self.sessions = Sessions(self.make)

    def make(self, name: str, config_json: str) -> Counting:
        self.made.append(Counting(replayable=self.replayable))
        return self.made[-1]

    @property
    def open(self) -> int:
        return sum(environment.closed == 0 for environment in self.made)

    def say(self, *actions: str) -> list[EnvironmentStepped]:
        """Reset, then apply the actions."""
        steps = [reset(), *(act(index, action) for index, action in enumerate(actions))]
        return [self.sessions.handle(step) for step in steps]


def command(kind: str, position: int = 0, tries: int = 0, **changes: object) -> EnvironmentStep:
    step = EnvironmentStep(
        rollout_id="r1",
        attempt=1,
        position=position,
        tries=tries,
        command_id=b"",
        body_digest=b"",
        answer_partition=0,
        not_after_ms=0,
        kind=kind,
        environment="counting",
        seed=5,
    )
    step = replace(step, **changes)
    return replace(step, command_id=command_id(step.rollout_id, step.attempt, position, tries))


def reset(**changes: object) -> EnvironmentStep:
    return command("reset", **changes)


def act(index: int, action: str, **changes: object) -> EnvironmentStep:
    return command("step", position=index + 1, index=index, action=action, **changes)


def code_of(ask: Callable[[], object]) -> tuple[str, bool]:
    with pytest.raises(WorkFailed) as failed:
        ask()
    return failed.value.code, failed.value.retriable


def test_steps_are_applied_in_order_and_counted() -> None:
    answers = World().say("a", "bb", "end")

    assert [answer.text for answer in answers] == ["5:", "5:a", "5:a,bb", "5:a,bb,end"]
    assert [answer.index for answer in answers] == [0, 1, 2, 3]
    assert [answer.reward for answer in answers] == [0.0, 1.0, 2.0, 3.0]
    assert [answer.terminated for answer in answers] == [False, False, False, True]


def test_repeated_last_step_gets_the_cached_answer() -> None:
    world = World()
    answers = world.say("a", "b")

    again = [world.sessions.handle(act(1, "b", tries=tries)) for tries in (0, 1)]

    assert again == [answers[-1]] * 2
    assert world.made[0].said == ["a", "b"]


def test_repeated_reset_does_not_reopen_the_environment() -> None:
    world = World()
    answers = world.say("a")

    again = world.sessions.handle(reset())

    assert again == answers[0]
    assert world.sessions.handle(act(1, "b")).text == "5:a,b"
    assert len(world.made) == 1


def test_new_reset_starts_a_session_and_closes_the_old_one() -> None:
    world = World()
    world.say("a")

    answer = world.sessions.handle(reset(position=9))

    assert (answer.text, answer.index) == ("5:", 0)
    assert (len(world.made), world.open, len(world.sessions)) == (2, 1, 1)


@pytest.mark.parametrize("wrong", [act(0, "a"), act(1, "other"), act(3, "b"), act(7, "b")])
def test_unexpected_step_index_drops_the_session(wrong: EnvironmentStep) -> None:
    world = World()
    world.say("a", "b")

    assert code_of(lambda: world.sessions.handle(wrong)) == ("history_needed", True)
    assert (world.open, len(world.sessions)) == (0, 0)


@given(st.lists(st.sampled_from(["a", "bb", "L", ""]), max_size=6), st.data())
def test_session_loss_at_any_step_changes_no_answer(
    actions: list[str], data: st.DataObject
) -> None:
    whole = World().say(*actions)
    world = World()
    answers = [world.sessions.handle(reset())]

    for index, action in enumerate(actions):
        step = act(index, action)
        if data.draw(st.booleans(), label=f"lost before {index}"):
            world.sessions.drop(0)
            assert code_of(partial(world.sessions.handle, step)) == ("history_needed", True)
            step = replace(step, tries=1, history=tuple(actions[:index]))
        answers.append(world.sessions.handle(step))

    assert answers == whole
    assert world.open <= 1


@given(
    st.lists(st.tuples(st.sampled_from(["reset", "step", "close"]), st.integers(0, 3)), max_size=20)
)
def test_open_environments_always_equal_held_sessions(asked: list[tuple[str, int]]) -> None:
    world = World()

    for position, (kind, index) in enumerate(asked):
        step = command(kind, position=position, index=index, action="x", attempt=1 + index % 2)
        with suppress(WorkFailed):
            world.sessions.handle(step)
        assert world.open == len(world.sessions) <= 1


def test_rebuilt_lake_session_includes_its_invalid_turns() -> None:
    def lake(kind: str, index: int = 0, **more: object) -> EnvironmentStep:
        return command(
            kind,
            position=index,
            index=index,
            environment=LAKE_ANY_START.environment,
            environment_config=LAKE_ANY_START.config_json,
            **more,
        )

    kept, lost = Sessions(), Sessions()
    actions = ("jump", "D", "jump", "R")
    for sessions in (kept, lost):
        sessions.handle(lake("reset"))
    for index, action in enumerate(actions[:-1]):
        answer = kept.handle(lake("step", index, action=action))
        lost.drop(0)
        again = lost.handle(lake("step", index, action=action, history=actions[:index]))
        assert again == answer
        if answer.terminated:
            break
    kept.close()
    lost.close()


def test_lost_session_of_a_non_replayable_environment_is_not_rebuilt() -> None:
    world = World(replayable=False)
    world.say("a")
    world.sessions.drop(0)

    for step in (act(1, "b"), act(1, "b", history=("a",))):
        assert code_of(partial(world.sessions.handle, step)) == ("session_lost", False)
    assert world.open == 0


def test_history_of_wrong_length_is_refused() -> None:
    world = World()

    step = act(2, "b", history=("a",))

    assert code_of(lambda: world.sessions.handle(step)) == ("bad_history", False)
    assert world.open == 0


@pytest.mark.parametrize("action", ["boom", "exit"])
def test_environment_error_fails_the_step_and_drops_the_session(action: str) -> None:
    world = World()
    world.say("a")

    with pytest.raises(WorkFailed, match=r"RuntimeError: the floor gave way|SystemExit") as failed:
        world.sessions.handle(act(1, action))

    assert (failed.value.code, failed.value.retriable) == ("raised", False)
    assert (world.open, len(world.sessions)) == (0, 0)
    assert world.sessions.handle(act(1, "b", history=("a",))).text == "5:a,b"


def test_finished_episode_refuses_steps_but_keeps_its_last_answer() -> None:
    world = World()
    answers = world.say("end")

    assert code_of(lambda: world.sessions.handle(act(1, "a"))) == ("episode_over", False)
    assert world.sessions.handle(act(0, "end")) == answers[-1]

    world.sessions.drop(0)
    late = act(1, "a", history=("end",))
    assert code_of(lambda: world.sessions.handle(late)) == ("episode_over", False)


def test_close_drops_the_session_and_may_be_repeated() -> None:
    world = World()
    world.say("a")

    answers = [world.sessions.handle(command("close", position=2, index=1)) for _ in range(2)]

    assert [answer.index for answer in answers] == [1, 1]
    assert (world.open, len(world.sessions), world.made[0].closed) == (0, 0, 1)


def test_newer_attempt_closes_sessions_of_older_attempts() -> None:
    world = World()
    for session in ("main", "other"):
        world.sessions.handle(reset(session=session))
    assert len(world.sessions) == 2

    world.sessions.handle(reset(attempt=2))

    assert (len(world.sessions), world.open) == (1, 1)
    assert code_of(lambda: world.sessions.handle(reset())) == ("stale_attempt", False)
    world.sessions.handle(command("close"))
    assert len(world.sessions) == 1
    world.sessions.handle(command("close", attempt=3))
    assert (len(world.sessions), world.open) == (0, 0)


def test_dropping_a_partition_closes_only_its_sessions() -> None:
    world = World()
    for partition in (0, 1):
        world.sessions.handle(reset(rollout_id=f"r{partition}"), partition=partition)

    assert world.sessions.drop(1) == 1
    assert world.sessions.drop(1) == 0
    assert (len(world.sessions), world.open) == (1, 1)


def test_idle_sessions_are_closed_after_their_lease() -> None:
    world = World()
    world.sessions.handle(reset(rollout_id="old"), now=100.0)
    world.sessions.handle(reset(), now=100.0)
    world.sessions.handle(act(0, "a"), now=150.0)

    assert world.sessions.reap(now=160.0, lease_s=30.0) == 1
    assert world.sessions.handle(act(1, "b"), now=170.0).text == "5:a,b"


def test_session_rebuilt_after_its_end_is_assigned_to_its_partition() -> None:
    world = World()

    late = act(1, "a", history=("end",))
    code_of(lambda: world.sessions.handle(late, partition=4, now=50.0))

    assert world.sessions.reap(now=60.0, lease_s=30.0) == 0
    assert world.sessions.drop(4) == 1


def test_unknown_command_kind_is_refused() -> None:
    assert code_of(lambda: World().sessions.handle(command("unknown"))) == ("unknown_kind", False)


@pytest.mark.parametrize(
    ("shown", "found"),
    [
        (Observation("x", reward=float("nan")), "reward is nan"),
        (Observation("\ud800"), "UnicodeEncodeError"),
        ("text alone", "must show an Observation, found str"),
    ],
)
def test_unserialisable_observation_fails_the_step_and_drops_the_session(
    shown: object, found: str
) -> None:
    class Odd(Counting):
        def step(self, action: str) -> Observation:
            return shown  # type: ignore[return-value]

    sessions = Sessions(lambda name, config_json: Odd())
    sessions.handle(reset())

    with pytest.raises(WorkFailed, match=found):
        sessions.handle(act(0, "a"))
    assert len(sessions) == 0


def test_step_info_of_any_type_is_converted_to_json() -> None:
    import numpy as np

    class Telling(Counting):
        def step(self, action: str) -> Observation:
            info = {"mask": np.array([1, 0], dtype=np.int8), "p": np.float32(0.5), 3: self}
            return Observation("", info=info)  # type: ignore[arg-type]

    sessions = Sessions(lambda name, config_json: Telling())
    sessions.handle(reset())

    info = json.loads(sessions.handle(act(0, "a")).info)

    assert info == {"mask": [1, 0], "p": 0.5, "3": "Telling"}


def test_environment_that_fails_to_open_or_close_leaves_no_session() -> None:
    class Stuck(Counting):
        def open(self, seed: int) -> Observation:
            raise KeyError(seed)

        def close(self) -> None:
            super().close()
            msg = "stuck"
            raise OSError(msg)

    stuck = Stuck()
    sessions = Sessions(lambda name, config_json: stuck)

    assert code_of(lambda: sessions.handle(reset())) == ("raised", False)
    assert (len(sessions), stuck.closed) == (0, 1)


def test_unavailable_service_error_is_raised_and_not_charged_to_the_step() -> None:
    class Away(Counting):
        def step(self, action: str) -> Observation:
            raise Unavailable(action)

    sessions = Sessions(lambda name, config_json: Away())
    sessions.handle(reset())

    with pytest.raises(Unavailable):
        sessions.handle(act(0, "a"))
    assert len(sessions) == 0


def test_last_answers_are_cached_within_a_memory_limit() -> None:
    world = World()
    world.sessions = Sessions(world.make, AnswerCache(2600))
    answers = world.say("a" * 900, "b" * 900)

    assert world.sessions.handle(act(1, "b" * 900, tries=1)) == answers[-1]
    assert code_of(lambda: world.sessions.handle(reset())) == ("stale_reset", False)
    for number in range(9):
        world.sessions.handle(reset(rollout_id=f"r{number + 2}"))

    late = act(1, "b" * 900, tries=2)
    assert code_of(lambda: world.sessions.handle(late)) == ("history_needed", True)


def test_short_last_answer_uses_no_cache_memory_and_replaces_a_long_one() -> None:
    class Echoing(Counting):
        def step(self, action: str) -> Observation:
            return Observation(action)

    cache: AnswerCache[EnvironmentStepped] = AnswerCache(10_000)
    sessions = Sessions(lambda name, config_json: Echoing(), cache)
    sessions.handle(reset())
    opened_bytes = cache.size_bytes

    for index, (action, is_long) in enumerate([("a", 0), ("b" * 900, 1), ("c", 0), ("d" * 900, 1)]):
        answer = sessions.handle(act(index, action))

        assert sessions.handle(act(index, action, tries=1)) == answer
        assert (cache.size_bytes > opened_bytes) == is_long


def test_split_off_sessions_continue_and_the_chosen_session_stays() -> None:
    world = World()
    for name in ("stays", "goes"):
        world.sessions.handle(reset(rollout_id=name))
        world.sessions.handle(act(0, "a", rollout_id=name))

    parted = world.sessions.part(("stays", 0))

    assert (world.sessions.rollouts(), parted.rollouts()) == ((("stays", 0),), (("goes", 0),))
    again = run_inline(parted.handle(act(0, "a", rollout_id="goes", tries=1)))
    on = run_inline(parted.handle(act(1, "b", rollout_id="goes")))
    assert (again.text, on.text) == ("5:a", "5:a,b")
    assert world.sessions.handle(act(1, "b", rollout_id="stays")).text == "5:a,b"
    assert world.open == 2
