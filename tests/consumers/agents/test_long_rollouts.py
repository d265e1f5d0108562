"""Rollouts long enough for their observations to be compressed."""

from rollcall.consumers.agents.effects import Agent, CallModel, Finish, Reset, Step, Task, user
from rollcall.schemas.messages import EnvironmentStep, Limits, ModelAnswered, Trajectory
from rollcall.schemas.packed import pack_ids, pack_logprobs
from rollcall.schemas.packed_rows import PACK_CHARS
from tests.support.journals import Hand, answer_to

ROUNDS = 40


def two_rooms(task: Task) -> Agent:
    """Acts in two concurrent sessions; one of them is reset half-way."""
    yield [Reset("left"), Reset("right")]
    for number in range(ROUNDS):
        if number == ROUNDS // 2:
            yield Reset("left")
        yield [Step(f"l{number} " + "x" * 500, "left"), Step(f"r{number}", "right")]
    yield Step("last", "left")
    yield Step("last", "right")
    yield Finish("done")


def test_a_lost_session_is_rebuilt_from_all_actions_since_its_opening() -> None:
    hand = Hand(two_rooms)
    limits = Limits(max_turns=100)
    commands = hand.start("two_rooms", limits=limits)
    shown = []
    while True:
        step = commands.pop(0)
        assert isinstance(step, EnvironmentStep)
        if step.action == "last":
            [again] = hand.fail(step, "history_needed")
            assert isinstance(again, EnvironmentStep)
            name, first = step.session[0], ROUNDS // 2 if step.session == "left" else 0
            told = [action.split()[0] for action in again.history or ()]
            assert told == [f"{name}{number}" for number in range(first, ROUNDS)]
            assert again.index == len(told)
            step = again
        shown.append((step.session, step.action if step.kind == "step" else None, "seen " * 200))
        effects = hand.show(step, "seen " * 200)
        if effects and not isinstance(effects[0], EnvironmentStep):
            break
        commands += effects

    [trajectory, *_] = hand.read(effects[0])
    assert isinstance(trajectory, Trajectory)
    assert [(t.session, t.action, t.text) for t in trajectory.steps or ()] == shown
    assert sum(len(text) for _, _, text in shown) > 2 * PACK_CHARS


def talks(task: Task) -> Agent:
    said = [user("go")]
    for _ in range(3):
        answer = yield CallModel(said)
        said = [*said, answer.message, user("on")]
    yield Finish("done")


def test_each_token_has_the_version_that_sampled_it() -> None:
    hand = Hand(talks)
    [call] = hand.start("talks")
    versions = [[7, 7, 7], [7, 8, 8], []]
    for each in versions:
        ids = pack_ids(range(len(each)))
        body = ModelAnswered(
            "yes", pack_ids([1, 2]), ids, pack_logprobs([-0.5] * len(each)), pack_ids(each),
            "stop", "p", 0,
        )  # fmt: skip
        [call] = hand.read(answer_to(call, body))

    [trajectory, *_] = hand.read(call)
    assert isinstance(trajectory, Trajectory)
    [sequence] = trajectory.sequences or ()
    read = [-1, -1]
    assert sequence.versions == pack_ids([*read, 7, 7, 7, *read, 7, 8, 8, *read])
