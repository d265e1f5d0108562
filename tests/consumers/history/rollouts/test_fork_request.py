"""A fork replays its parent's first turns from the record, and then continues live."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

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
from rollcall.consumers.agents.fork import Past, RecordedAnswer, forking
from rollcall.consumers.audit.audit import audit
from rollcall.consumers.history.reading.local_programs import watched_world
from rollcall.consumers.history.rollouts.fork_request import fork_request, fork_requests, parent_of
from rollcall.producers.submit import Submitter
from rollcall.sandbox.environment import Observation
from rollcall.schemas.errors import Refused, WorkFailed
from rollcall.schemas.messages import (
    AttemptStarted,
    EnvironmentStep,
    Event,
    Limits,
    ModelCall,
    RolloutRequest,
    RolloutStarted,
    ScoredTrajectory,
    Trajectory,
)
from rollcall.schemas.messages import Task as WireTask
from rollcall.schemas.packed import ids_of, mask_of
from tests.support.command_line import call
from tests.support.journals import Hand
from tests.support.memory_cluster import CORRIDOR, POLICY, Corridor, MemoryCluster
from tests.support.tiny_run import World

HERE = __name__
TASK = WireTask(CORRIDOR, seed=7, system="Find the door.")


class OneWay(Corridor):
    """The same corridor, without the promise that it replays."""

    replayable = False


class Moody(Corridor):
    """It claims to replay, but does not."""

    opened = 0

    def open(self, seed: int) -> Observation:
        Moody.opened += 1
        self.mood = Moody.opened
        return super().open(seed)

    def step(self, action: str) -> Observation:
        seen = super().step(action)
        return replace(seen, text=f"{seen.text}, mood {self.mood}")


def drawing(task: Task) -> Agent:
    """Reports its random draws, and continues two conversations at once."""
    yield [Reset("left"), Reset("right")]
    messages = {"left": [user("left")], "right": [user("right")]}
    for _ in range(2):
        drawn = str(task.rng.random())
        answers = yield [CallModel([*said, user(drawn)]) for said in messages.values()]
        for said, answer in zip(messages.values(), answers, strict=True):
            said += [user(drawn), answer.message]
        yield [Step(answers[0].text, "left"), Step(answers[1].text, "right")]
    yield Finish(str(task.rng.random()))


def by_seed(call: ModelCall) -> str:
    """An answer that depends on everything a call has: tokens, messages and seed."""
    said = "".join(message.content for message in call.messages)
    if said == "a long story":
        raise WorkFailed("too_long", "it was too long", retriable=False)
    if "short" in said or "and on" in said:
        return "fall"
    return f"go {(call.seed + sum(call.prefix_ids or b'') + sum(said.encode())) % 1000}"


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster()
    cluster.hire(by_seed)
    return cluster


def run(cluster: MemoryCluster, request: RolloutRequest) -> Trajectory:
    cluster.ask(request)
    cluster.finish()
    return trajectory(cluster, request.rollout_id)


def trajectory(cluster: MemoryCluster, rollout_id: str) -> Trajectory:
    found = read(cluster, cluster.topics.trajectories, Trajectory)
    return next(each for each in found if each.rollout_id == rollout_id)


def read(cluster: MemoryCluster, topic: str, kind: type) -> list[Any]:
    return [cluster.codec.decode(record.value, kind) for record in cluster.log.all(topic)]


def calls(cluster: MemoryCluster, rollout_id: str) -> list[ModelCall]:
    """The model calls of a rollout, without aborts."""
    found = read(cluster, cluster.topics.calls(POLICY), ModelCall)
    return [call for call in found if call.rollout_id == rollout_id and call.kind == "sample"]


def forks_of(cluster: MemoryCluster, rollout_id: str) -> list[RolloutRequest]:
    requests = read(cluster, cluster.topics.requests, RolloutRequest)
    return [request for request in requests if request.parent_rollout_id == rollout_id]


def make(cluster: MemoryCluster, rollout_id: str, *words: str, at: int = 0) -> list[Trajectory]:
    """Fork it, let all workers run, and return the forks' trajectories."""
    before = {request.rollout_id for request in forks_of(cluster, rollout_id)}
    call(cluster, "fork", rollout_id, f"--at={at}", *words)
    cluster.finish()
    new = {request.rollout_id for request in forks_of(cluster, rollout_id)} - before
    return [trajectory(cluster, each) for each in sorted(new)]


def parent(rollout_id: str = "parent", **fields: Any) -> RolloutRequest:
    given = {"task": TASK, "policy_id": POLICY, "run_id": "run", "purpose": "train"}
    return RolloutRequest(rollout_id, **(given | {"group_id": "g"} | fields))


def actions(found: Trajectory) -> list[tuple[str | None, str]]:
    return [(step.action, step.text) for step in found.steps or ()]


def test_a_fork_at_turn_0_with_its_parents_seed_repeats_all_answers(
    cluster: MemoryCluster,
) -> None:
    then = run(cluster, parent())

    [now] = make(cluster, "parent", "--seed=parent")
    [other] = make(cluster, "parent")

    assert now.sequences == then.sequences
    assert now.steps == then.steps
    assert actions(other) != actions(then)


@pytest.mark.parametrize("turn", [1, 2])
def test_a_live_call_of_a_fork_continues_the_recorded_tokens_exactly(
    turn: int, cluster: MemoryCluster
) -> None:
    then = run(cluster, parent())
    [recorded] = then.sequences or ()

    [now] = make(cluster, "parent", at=turn)

    first = calls(cluster, now.rollout_id)[0]
    theirs = calls(cluster, "parent")[turn]
    assert first.prefix_ids == theirs.prefix_ids
    assert first.messages == theirs.messages
    [sequence] = now.sequences or ()
    assert theirs.prefix_ids is not None
    begun = theirs.prefix_length
    assert sequence.token_ids[: 4 * begun] == recorded.token_ids[: 4 * begun]
    assert not mask_of(sequence.loss_mask)[:begun].any()
    assert set(ids_of(sequence.versions)[:begun]) == {-1}
    assert now.sampled_tokens == int(mask_of(sequence.loss_mask).sum()) < then.sampled_tokens
    assert sequence.messages[: 2 * turn + 2] == recorded.messages[: 2 * turn + 2]
    assert now.model_calls == then.model_calls - turn
    assert (now.status, actions(now)[: turn + 1]) == ("finished", actions(then)[: turn + 1])


def test_a_forks_request_names_parent_and_position_and_no_run(
    cluster: MemoryCluster,
) -> None:
    run(cluster, parent(user="ada", min_policy_version=0))

    [now] = make(cluster, "parent", at=1)

    assert now.request is not None
    assert (now.request.parent_rollout_id, now.request.parent_position) == ("parent", 3)
    assert (now.request.run_id, now.request.group_id, now.request.purpose) == ("", "", "replay")
    assert (now.request.user, now.request.task) == ("ada", TASK)
    scored = read(cluster, cluster.topics.scored, ScoredTrajectory)
    assert now.rollout_id in {each.trajectory.rollout_id for each in scored}


def test_several_forks_are_one_group_with_their_own_seeds(cluster: MemoryCluster) -> None:
    run(cluster, parent())

    forks = make(cluster, "parent", "--n=3", "--seed=s", at=1)

    requests = [each.request for each in forks if each.request]
    assert [request.sampling_seed for request in requests] == ["s-0", "s-1", "s-2"]
    assert len({request.group_id for request in requests}) == 1
    assert {request.group_size for request in requests} == {3}
    assert len({actions(each)[2] for each in forks}) > 1


def test_a_fork_of_a_fork_replays_both_records(cluster: MemoryCluster) -> None:
    then = run(cluster, parent())
    [child] = make(cluster, "parent", at=1)

    [grandchild] = make(cluster, child.rollout_id, at=1)

    asked = calls(cluster, grandchild.rollout_id)[0]
    assert asked.prefix_ids == calls(cluster, child.rollout_id)[1].prefix_ids
    assert actions(grandchild)[:2] == actions(then)[:2]
    assert actions(grandchild)[:3] == actions(child)[:3]
    assert grandchild.status == "finished"


def test_a_fork_repeats_random_draws_and_resumes_several_conversations(
    cluster: MemoryCluster,
) -> None:
    then = run(cluster, parent(agent=f"{HERE}:drawing"))

    [now] = make(cluster, "parent", at=2)
    [askew] = make(cluster, "parent", at=1)

    assert now.result == then.result == askew.result, "its generator is the parent's"
    left, right = calls(cluster, now.rollout_id)
    assert [left.prefix_ids, right.prefix_ids] == [
        call.prefix_ids for call in calls(cluster, "parent")[2:]
    ]
    assert len(now.sequences or ()) == 2
    assert [call.prefix_length for call in calls(cluster, askew.rollout_id)][:1] == [0]
    assert len(calls(cluster, askew.rollout_id)) == 3


def equipped(task: Task) -> Agent:
    """Has another tool at every other turn."""
    messages = [user("Go!")]
    for tools in ("[1]", "[1]", "[2]", "[2]"):
        answer = yield CallModel(messages, tools=tools)
        messages += [answer.message, user("And?")]
    yield Finish()


@pytest.mark.parametrize("turn", [1, 2, 3])
def test_a_fork_continues_a_sequence_with_the_same_tools(turn: int, cluster: MemoryCluster) -> None:
    then = run(cluster, parent(agent=f"{HERE}:equipped"))

    [now] = make(cluster, "parent", at=turn)

    first, theirs = calls(cluster, now.rollout_id)[0], calls(cluster, "parent")[turn]
    assert (first.prefix_ids, first.messages) == (theirs.prefix_ids, theirs.messages)
    assert bool(first.prefix_length) == (turn != 2)
    assert len(then.sequences or ()) == 2
    assert len(now.sequences or ()) == (2 if turn == 1 else 1)


def racing(task: Task) -> Agent:
    """Two environments, each with its own conversation, in any order."""
    opened: list[Any] = [Reset("left"), Reset("right"), CallModel([user("judge")])]
    talks = {"left": [user("left")], "right": [user("right")]}
    told, open_ = [], 3
    while open_:
        done = yield AsCompleted(opened)
        told.append(done.outcome.text)
        opened = []
        if isinstance(done.wish, CallModel):
            side = done.wish.messages[0].content
            if side in talks:
                talks[side].append(done.outcome.message)
                opened = [Step(done.outcome.text, side)]
        elif not done.outcome.done and len(talks[done.wish.session]) < 5:
            talk = talks[done.wish.session]
            talk.append(user(done.outcome.text))
            opened = [CallModel(list(talk))]
        open_ += len(opened) - 1
    yield Finish("; ".join(told))


@pytest.mark.parametrize("turn", range(5))
def test_concurrent_outcomes_are_replayed_in_a_fork(turn: int, cluster: MemoryCluster) -> None:
    then = run(cluster, parent(agent=f"{HERE}:racing"))
    assert then.status == "finished", then.reason

    [now] = make(cluster, "parent", "--seed=parent", at=turn)

    assert now.status == "finished", now.reason
    assert now.model_calls == then.model_calls - turn
    spoken = [said for said in then.result.split("; ") if said.startswith("go")]
    assert set(spoken[:turn]) <= set(now.result.split("; "))
    assert len(now.result.split("; ")) == len(then.result.split("; "))


def test_out_of_order_outcomes_are_replayed_in_their_recorded_order() -> None:
    def pools(task: Task) -> Agent:
        done = yield AsCompleted([CallModel([user(str(n))]) for n in range(3)])
        said = [done.outcome.text]
        for _ in range(2):
            done = yield AsCompleted()
            said.append(done.outcome.text)
        live = yield CallModel([user("live")])
        yield Finish(",".join([*said, live.text]))

    spoken = [RecordedAnswer(n, n, f"to {n}", "", "stop", b"", b"") for n in range(3)]
    past = Past("pools", "", 1, 3, tuple(spoken), (2, 0, 1))
    hand = Hand(pools)
    hand.journal.world = replace(
        hand.journal.world, program_of={"fork": forking({"pools": pools}.__getitem__)}.__getitem__
    )

    [call] = hand.start("fork", agent_config=past.config())
    [decision] = hand.say(call, "now")

    assert decision.body.result == "to 2,to 0,to 1,now"
    assert "order" not in json.loads(replace(past, order=()).config())


def test_a_failed_call_fails_again_in_a_fork_without_being_asked(cluster: MemoryCluster) -> None:
    run(cluster, parent(agent=f"{HERE}:clumsy"))
    assert trajectory(cluster, "parent").result == "too_long, fall, fall"

    [now] = make(cluster, "parent", at=1)

    assert now.result == "too_long, fall, fall"
    assert [call.messages[-1].content for call in calls(cluster, now.rollout_id)] == ["and on"]


def clumsy(task: Task) -> Agent:
    """Continues after a failed call."""
    code = ""
    try:
        yield CallModel([user("a long story")])
    except WishFailed as failed:
        code = failed.code
    first = yield CallModel([user("a short one")])
    second = yield CallModel([user("a short one"), first.message, user("and on")])
    yield Finish(f"{code}, {first.text}, {second.text}")


def test_a_diverging_environment_ends_the_fork_with_the_reason(
    cluster: MemoryCluster,
) -> None:
    run(cluster, parent(task=replace(TASK, environment=f"{HERE}:Moody")))

    [now] = make(cluster, "parent", at=2)

    assert (now.status, now.code) == ("failed", "fork_diverged")
    assert "at position 2 of its parent the environment shows 'door 1, mood 2'" in now.reason
    assert "the record has 'door 1, mood 1'" in now.reason
    assert calls(cluster, now.rollout_id) == []


def test_an_environment_that_cannot_replay_is_refused_beyond_turn_0(
    cluster: MemoryCluster,
) -> None:
    then = run(cluster, parent(task=replace(TASK, environment=f"{HERE}:OneWay")))

    with pytest.raises(Refused, match=r"OneWay'.*turn 0"):
        make(cluster, "parent", at=1)
    [now] = make(cluster, "parent", "--seed=parent", at=0)

    assert now.sequences == then.sequences


@pytest.mark.parametrize("turn", [3, 99])
def test_a_fork_at_a_turn_never_taken_is_refused(turn: int, cluster: MemoryCluster) -> None:
    run(cluster, parent())

    with pytest.raises(Refused, match=rf"--at {turn}: .* 0 to 2"):
        make(cluster, "parent", at=turn)


def test_a_rollout_that_stopped_early_can_continue_after_its_last_turn(
    cluster: MemoryCluster,
) -> None:
    then = run(cluster, parent(limits=Limits(max_turns=1)))
    assert then.status == "finished"
    longer = run(cluster, parent("failed", agent=f"{HERE}:greedy", limits=Limits(max_turns=2)))
    assert (longer.status, longer.code) == ("failed", "turn_limit")

    [now] = make(cluster, "failed", at=2)

    assert now.model_calls == 2, "the recorded turns use up none of its own"
    assert calls(cluster, now.rollout_id)[0].prefix_length > 0


def greedy(task: Task) -> Agent:
    """Calls the policy without end."""
    messages = [user("more")]
    while True:
        answer = yield CallModel(messages)
        messages = [*messages, answer.message, user("more")]


def test_the_last_attempt_is_forked_without_ignored_events(cluster: MemoryCluster) -> None:
    cluster.ask(parent())
    while not (journal := cluster.log.all(cluster.topics.events)):
        cluster.log.work()
    lost = Event.decision("parent", 2, "agents-1", AttemptStarted("lost"))
    cluster.enter(lost, journal[0].partition)
    cluster.finish()
    then = trajectory(cluster, "parent")
    assert then.attempt == 2

    [now] = make(cluster, "parent", at=2)

    assert actions(now)[:3] == actions(then)[:3]
    assert now.attempt == 1


def test_a_changed_program_is_refused(cluster: MemoryCluster) -> None:
    body = RolloutStarted(parent(), 0, 0, "another digest")
    cluster.enter(Event.decision("parent", 1, "agents-1", body))

    with pytest.raises(Refused, match="program 'react'"):
        make(cluster, "parent")


def test_unknown_rollouts_policies_and_programs_are_refused(cluster: MemoryCluster) -> None:
    run(cluster, parent())
    cluster.start(parent("elsewhere", agent="nowhere_at_all:f"), request_offset=90)

    with pytest.raises(Refused, match=r"'paren'.*'parent'"):
        make(cluster, "paren")
    with pytest.raises(Refused, match="policy 'q' has no topic"):
        make(cluster, "parent", "--policy=q")
    with pytest.raises(Refused, match="nowhere_at_all"):
        make(cluster, "elsewhere")
    assert forks_of(cluster, "parent") == []


def test_a_forks_record_of_its_parent_survives_its_config(cluster: MemoryCluster) -> None:
    run(cluster, parent())
    request = fork_request(parent_of(cluster, "parent", watched_world(5.0)), 2)

    past = Past.of(Task("", "", "", 1, request.agent_config, lambda: None).config)  # type: ignore[arg-type]

    assert past.config() == request.agent_config
    assert (past.program, past.turn, [r.position for r in past.recorded]) == (
        "react",
        2,
        [*range(5)],
    )
    assert [each.rollout_id for each in fork_requests(request, 2)] == [
        f"{request.rollout_id}-0",
        f"{request.rollout_id}-1",
    ]


def test_a_recorded_answer_names_the_stop_string_that_ended_it() -> None:
    plain = RecordedAnswer(0, 0, "one ", "", "stop", b"", b"")
    stopped = replace(plain, position=1, stopped_by="two")
    past = Past("react", "{}", 0, 2, (plain, stopped))

    config = json.loads(past.config())

    assert Past.of(config) == past
    assert ["stopped_by" in each for each in config["recorded"]] == [False, True]


def test_environments_are_rebuilt_by_recorded_actions_and_the_same_seed(
    cluster: MemoryCluster,
) -> None:
    then = run(cluster, parent())

    [now] = make(cluster, "parent", at=2)

    steps = [
        step
        for step in read(cluster, cluster.topics.steps, EnvironmentStep)
        if step.rollout_id == now.rollout_id and step.kind != "close"
    ]
    assert [(step.kind, step.seed) for step in steps[:3]] == [
        ("reset", 7),
        ("step", 7),
        ("step", 7),
    ]
    assert [step.action for step in steps[1:3]] == [action for action, _ in actions(then)[1:3]]


def test_the_audit_of_a_log_with_forks_is_clean(cluster: MemoryCluster) -> None:
    run(cluster, parent())
    run(cluster, parent("two", agent=f"{HERE}:drawing"))
    make(cluster, "parent", "--n=3", at=1)
    [fork_of_two] = make(cluster, "two", at=2)
    make(cluster, fork_of_two.rollout_id, at=1)

    report = audit(cluster, drained=True)

    assert report.breaches == []
    assert (report.ended, report.not_run_again) == (7, 0)


def test_a_greedy_fork_with_real_weights_repeats_its_parents_tokens(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.train(world.trainer())
    version = max(version.version for version in world.versions())
    found = world.read(world.topics.trajectories, Trajectory)
    newest = [each for each in found if each.request.min_policy_version == version]
    then = next(each for each in newest if each.model_calls > 2)
    assert then.request.sampling.temperature == 0.0

    request = fork_request(parent_of(world, then.rollout_id, watched_world(5.0)), 2)
    Submitter(world.log.publisher(), world.codec, world.topics).publish(request)
    while len(after := world.read(world.topics.trajectories, Trajectory)) == len(found):
        for loop in world.loops:
            loop.turn(0.0)

    now = next(each for each in after if each.rollout_id == request.rollout_id)
    [recorded], [live] = then.sequences, now.sequences
    assert [replace(step, position=0) for step in now.steps] == [
        replace(step, position=0) for step in then.steps
    ]
    assert live.token_ids == recorded.token_ids
    assert mask_of(live.loss_mask).sum() == mask_of(recorded.loss_mask).sum() - 2
    assert live.messages == recorded.messages
