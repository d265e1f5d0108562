"""Agents that are processes: if killed at any point, they are rebuilt from their history."""

import asyncio
import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall.sandbox.environment import Observation
from rollcall.sandbox.environments.hosted_agent import HostedAgent
from rollcall.schemas.agent_requests import (
    AgentAction,
    AgentRequest,
    Choice,
    ErrorReply,
    ModelReply,
    Reply,
    requests_of,
)
from rollcall.schemas.errors import WorkFailed
from rollcall.schemas.messages import EnvironmentStepped, Limits, ModelCall, Trajectory
from rollcall.schemas.messages import Task as WireTask
from tests.support.hosted_rollout import (
    Asks,
    CoroutineHost,
    Echo,
    HostedRun,
    chat,
    model_request,
    texts_of,
)
from tests.support.journals import Hand
from tests.support.tiers import examples


async def sequential(ask: Asks) -> int:
    texts = await chat(ask, "hello", turns=5)
    await ask(AgentRequest("finish", text="|".join(texts)))
    return 0


async def parallel(ask: Asks) -> int:
    """Four concurrent callers, and three equal requests beside them."""

    async def votes() -> list[str]:
        replies = await asyncio.gather(*(ask(model_request("vote")) for _ in range(3)))
        return sorted(texts_of(reply)[0] for reply in replies)

    talks = [chat(ask, f"caller {n}", turns=3) for n in range(4)]
    *said, voted = await asyncio.gather(*talks, votes())
    await ask(AgentRequest("finish", text=json.dumps([said, voted])))
    return 0


def lived(run: HostedRun) -> Trajectory:
    return asyncio.run(run.run())


def test_agent_requests_become_model_calls_and_replies_become_steps() -> None:
    run = HostedRun(sequential)

    trajectory = lived(run)

    assert (trajectory.status, trajectory.attempt) == ("finished", 1), trajectory.reason
    assert trajectory.model_calls == 5
    [sequence] = trajectory.sequences or ()
    assert trajectory.result == "|".join(m.content for m in sequence.messages) + "|turn 4"
    assert [step.session for step in trajectory.steps or ()] == ["agent"] * 7
    assert run.host.tasks[0]["prompt"] == "do it"


async def stopping(ask: Asks) -> int:
    reply = await ask(model_request("count", stop=("never", "two")))
    assert isinstance(reply, ModelReply)
    said = reply.choices[0]
    await ask(AgentRequest("finish", text=f"{said.text!r} ended by {said.stopped_by!r}"))
    return 0


def test_agent_receives_the_stop_string_that_ended_an_answer() -> None:
    run = HostedRun(stopping, say=lambda _: "one two three")

    assert lived(run).result == "'one ' ended by 'two'"


@pytest.mark.parametrize("agent", [sequential, parallel])
@settings(max_examples=examples(12), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    moves=st.sets(st.integers(1, 30), max_size=4),
    kills=st.sets(st.integers(1, 30), max_size=2),
)
def test_no_model_call_repeats_after_worker_or_agent_process_death(
    agent: Any, seed: int, moves: set[int], kills: set[int]
) -> None:
    # Given a rollout whose worker, and whose process, die at these commands
    moves, kills = set(moves), set(kills)

    async def disturb(run: HostedRun) -> None:
        if run.answered in moves:
            moves.discard(run.answered)
            await run.move()
        if run.answered in kills and run.host.processes:
            kills.discard(run.answered)
            run.host.processes[-1].kill()

    still = lived(HostedRun(agent, Random(seed)))
    run = HostedRun(agent, Random(seed), disturb=disturb)

    # When it runs to its end
    trajectory = lived(run)

    # Then every request was made once, in one attempt
    assert (trajectory.status, trajectory.attempt) == ("finished", 1), trajectory.reason
    assert trajectory.model_calls == still.model_calls == len(run.calls)


def test_recorded_bytes_grow_linearly_with_the_number_of_turns() -> None:
    async def talks(ask: Asks) -> int:
        await chat(ask, "x" * 1000, turns=100)
        return 0

    run = HostedRun(talks, say=lambda call: "y" * 1000, limits=Limits(max_turns=100))
    trajectory = lived(run)

    seen = [
        len(e.event.body.text)
        for e in run.hand.entries
        if isinstance(e.event.body, EnvironmentStepped)
    ]
    assert trajectory.model_calls == 100
    assert max(seen) < 1500
    assert sum(seen) < 100 * 1500
    assert sum(len(step.action or "") for step in trajectory.steps or ()) < 100 * 1500


def test_rebuilt_agent_with_different_requests_starts_another_attempt() -> None:
    asked = []

    async def noisy(ask: Asks) -> int:
        asked.append(len(asked))
        await chat(ask, f"noise {min(asked[-1], 1)}", turns=2)
        return 0

    async def disturb(run: HostedRun) -> None:
        if run.answered == 4 and len(asked) == 1:
            await run.move()

    run = HostedRun(noisy, disturb=disturb, config={"catch_up_s": 0.05})
    trajectory = lived(run)

    assert (trajectory.status, trajectory.attempt) == ("finished", 2)
    [reason] = [e.body.reason for e in run.decisions if type(e.body).__name__ == "AttemptStarted"]
    assert "has diverged from its history" in reason
    assert "'noise 1'" in reason


def test_agent_that_always_diverges_fails_after_its_last_attempt() -> None:
    number = iter(range(100))

    async def noisy(ask: Asks) -> int:
        await chat(ask, f"noise {next(number)}", turns=3)
        return 0

    async def disturb(run: HostedRun) -> None:
        if run.answered % 3 == 0:
            await run.move()

    config = {"catch_up_s": 0.02}
    trajectory = lived(HostedRun(noisy, disturb=disturb, config=config))

    assert (trajectory.status, trajectory.code, trajectory.attempt) == ("failed", "session_lost", 3)


def test_agent_that_makes_no_request_finishes() -> None:
    async def ends(ask: Asks) -> int:
        return 0

    assert lived(HostedRun(ends)).status == "finished"


@pytest.mark.parametrize("code", [1, 3, 255])
def test_agent_with_nonzero_exit_code_fails_with_its_last_words(code: int) -> None:
    async def fails(ask: Asks) -> int:
        await ask(model_request("hello"))
        return code

    trajectory = lived(HostedRun(fails))

    assert (trajectory.status, trajectory.code) == ("failed", "agent_exit")
    assert f"ended with code {code}; its last words: it ended badly" in trajectory.reason


def test_repeatedly_killed_agent_is_restarted_twice_and_then_fails() -> None:
    async def disturb(run: HostedRun) -> None:
        if run.host.processes:
            run.host.processes[-1].kill()

    run = HostedRun(sequential, disturb=disturb)
    trajectory = lived(run)

    assert (trajectory.status, trajectory.code) == ("failed", "agent_exit")
    assert "by signal 9" in trajectory.reason
    assert len(run.host.processes) == 3


def test_request_for_several_choices_makes_several_calls_and_one_reply() -> None:
    replies: list[Reply] = []

    async def wants_three(ask: Asks) -> int:
        replies.append(await ask(model_request("hello", n=3)))
        return 0

    trajectory = lived(HostedRun(wants_three))

    [reply] = replies
    assert isinstance(reply, ModelReply)
    assert trajectory.model_calls == len(reply.choices) == 3
    assert len({choice.text for choice in reply.choices}) == 3
    assert (reply.prompt_tokens, reply.at_ms > 0, len(reply.id)) == (5, True, 32)


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (Limits(max_turns=2), "turn_limit"),
        (Limits(max_tokens=10), "token_limit"),
        (Limits(max_wishes=14), "position_limit"),
    ],
)
def test_agent_over_its_limit_gets_an_error_and_may_finish(limits: Limits, code: str) -> None:
    refused: list[ErrorReply] = []

    async def asks_on(ask: Asks) -> int:
        for turn in range(50):
            reply = await ask(model_request(f"turn {turn}"))
            if isinstance(reply, ErrorReply):
                refused.append(reply)
                break
        await ask(AgentRequest("finish", text="so far"))
        return 0

    trajectory = lived(HostedRun(asks_on, limits=limits))

    assert [(reply.status, reply.code) for reply in refused] == [(404, code)]
    assert (trajectory.status, trajectory.result) == ("finished", "so far")


def test_concurrent_task_steps_run_sequentially_and_stop_after_episode_end() -> None:
    seen: list[Reply] = []

    async def plays(ask: Asks) -> int:
        both = await asyncio.gather(
            *(ask(AgentRequest("step", text=text)) for text in ("left", "right"))
        )
        seen.extend(
            [
                *both,
                await ask(AgentRequest("step", text="end")),
                await ask(AgentRequest("step", text="?")),
            ]
        )
        return 0

    run = HostedRun(plays, task=WireTask("tests.support.hosted_rollout:Echo", prompt=""))
    trajectory = lived(run)

    assert [texts_of(reply)[0] for reply in seen[:3]] == ["1 left", "2 right", "3 end"]
    assert isinstance(seen[3], ErrorReply)
    assert (seen[3].status, seen[3].code) == (404, "episode_over")
    assert run.host.tasks[0]["observation"] == run.host.tasks[0]["prompt"] == "a room"
    assert [step.reward for step in trajectory.steps or () if step.session == "main"][-1] == 1.0


def test_step_without_an_environment_is_refused() -> None:
    seen: list[Reply] = []

    async def plays(ask: Asks) -> int:
        seen.append(await ask(AgentRequest("step", text="left")))
        return 0

    lived(HostedRun(plays))

    assert isinstance(seen[0], ErrorReply)
    assert seen[0].code == "no_environment"


def test_call_with_zero_max_tokens_returns_only_the_prompt_length() -> None:
    seen: list[Reply] = []

    async def counts(ask: Asks) -> int:
        seen.append(await ask(model_request("hello", max_tokens=0)))
        seen.append(await ask(model_request("hello")))
        return 0

    trajectory = lived(HostedRun(counts))

    count, reply = seen
    assert isinstance(count, ModelReply)
    assert isinstance(reply, ModelReply)
    assert count.prompt_tokens == reply.prompt_tokens == 5
    assert count.sampled_tokens == 0
    assert len(trajectory.sequences or ()) == 1


@pytest.mark.parametrize(
    ("ask_", "code"),
    [
        (AgentRequest("model"), "no_messages"),
        (AgentRequest("finish", text="x" * 200_001), "result_too_large"),
    ],
)
def test_invalid_agent_request_gets_a_400_and_the_rollout_continues(
    ask_: AgentRequest, code: str
) -> None:
    seen: list[Reply] = []

    async def asks(ask: Asks) -> int:
        seen.append(await ask(ask_))
        return 0

    trajectory = lived(HostedRun(asks))

    assert [(each.status, each.code) for each in seen if isinstance(each, ErrorReply)] == [
        (400, code)
    ]
    assert trajectory.status == "finished"


@pytest.mark.parametrize(
    ("code", "status", "kept"),
    [("too_long", 400, "too_long"), ("raised", 503, "raised"), ("unknown_policy", 404, None)],
)
def test_permanently_failed_model_call_is_reported_with_its_http_status(
    code: str, status: int, kept: str | None
) -> None:
    seen: list[Reply] = []

    async def asks(ask: Asks) -> int:
        seen.append(await ask(model_request("hello")))
        seen.append(await ask(model_request("hello")))
        return 0

    def fails(call: ModelCall) -> str:
        if call.position < 2:
            raise WorkFailed(code, "this model's maximum context length is 1", retriable=False)
        return "yes"

    trajectory = lived(HostedRun(asks, say=fails))

    first, second = seen
    assert isinstance(first, ErrorReply)
    assert (first.status, first.code) == (status, kept or code)
    assert "maximum context length" in first.error
    assert isinstance(second, ModelReply)
    assert trajectory.status == "finished"


class Dying(Echo):
    """An environment whose box dies at every step of one kind."""

    def step(self, action: str) -> Observation:
        if action == "die":
            msg = "a box is gone"
            raise WorkFailed("box_died", msg, retriable=True)
        return super().step(action)


def model_that_fails(call: ModelCall) -> str:
    if call.messages[-1].content == "hello":
        msg = "the model has no memory left"
        raise WorkFailed("raised", msg, retriable=False)
    return "yes"


CALL, DIE, STEP = (
    model_request("hello"),
    AgentRequest("step", text="die"),
    AgentRequest("step", text="x"),
)


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize(
    ("asks", "ended"),
    [
        ([CALL], ("failed", "raised")),
        ([DIE], ("failed", "box_died")),
        ([DIE, AgentRequest("finish", text="I give up")], ("failed", "box_died")),
        ([CALL, *[AgentRequest("model")] * 2], ("failed", "raised")),
        ([CALL, model_request("go on")], ("finished", "")),
        ([DIE, STEP], ("finished", "")),
        ([AgentRequest("step", text="end"), CALL], ("finished", "")),
    ],
)
def test_agent_that_gives_up_after_an_infrastructure_error_fails_with_its_code(
    asks: list[AgentRequest], ended: tuple[str, str], code: int
) -> None:
    """Otherwise it would earn 0; a nonzero exit code is then only a consequence."""

    async def gives_up(ask: Asks) -> int:
        for each in asks:
            await ask(each)
        return code

    task = WireTask(f"{__name__}:Dying", prompt="do it")
    trajectory = lived(HostedRun(gives_up, task=task, say=model_that_fails))

    if code and ended[0] == "finished":
        ended = "failed", "agent_exit"
    assert (trajectory.status, trajectory.code) == ended, trajectory.reason


@pytest.mark.parametrize(
    ("code", "retriable", "tries", "ended"),
    [("deadline", True, 3, "agent_deadline"), ("agent_missing", False, 1, "agent_missing")],
)
def test_unreachable_agent_process_fails_its_rollout(
    code: str, retriable: bool, tries: int, ended: str
) -> None:
    hand = Hand()
    config = json.dumps({"agent": "command", "argv": ["x"]})
    effects = hand.start("hosted", agent_config=config)
    effects = hand.show(effects[0], "a room")

    for _ in range(tries):
        [reset] = effects
        effects = hand.fail(reset, code, retriable=retriable)

    [decision] = effects
    assert (decision.body.status, decision.body.code) == ("failed", ended)
    assert decision.body.reason == f"it was {code}"


def test_waiting_request_is_shown_with_the_next_request_of_another_caller() -> None:
    """Otherwise two concurrent callers would alternate."""

    async def live() -> list[list[str]]:
        begun = asyncio.Event()

        async def two(ask: Asks) -> int:
            async def right() -> None:
                await begun.wait()
                await chat(ask, "right", turns=2)

            await asyncio.gather(chat(ask, "left", turns=2), right())
            return 0

        task = {"config": {"argv": ["x"]}}
        agent = HostedAgent("command", ["p"], task, CoroutineHost({"x": two}))
        first = requests_of((await agent.open(1)).text, {})
        begun.set()
        for _ in range(20):
            await asyncio.sleep(0)
        replies = tuple(ModelReply(ask.d, (Choice("yes"),)) for ask in first)
        then = await agent.step(AgentAction(replies).text())
        second = requests_of(then.text, {ask.d: ask for ask in first})
        await agent.close()
        return [[ask.messages[-1].content for ask in asks] for asks in (first, second)]

    first, second = asyncio.run(live())

    assert first == ["left"]
    assert second == ["right", "turn 0"]


def test_token_ids_and_logprobs_are_returned_on_request() -> None:
    seen: list[Reply] = []

    async def asks(ask: Asks) -> int:
        seen.append(await ask(model_request("hello", token_ids=True, logprobs=True)))
        texts = ["hello", texts_of(seen[0])[0], "more"]
        seen.append(await ask(model_request(*texts, token_ids=True)))
        seen.append(await ask(model_request("hello", logprobs=True)))
        return 0

    lived(HostedRun(asks, say=lambda call: "yes"))

    first, second, third = (reply for reply in seen if isinstance(reply, ModelReply))
    yes, hello = tuple(map(ord, "yes")), tuple(map(ord, "hello"))
    assert (first.prompt_token_ids, first.choices[0].token_ids) == (hello, yes)
    assert first.choices[0].logprobs == (-0.5,) * 3
    assert second.prompt_token_ids == (*hello, *yes, *map(ord, "more"))
    assert second.choices[0].logprobs is None
    assert (third.prompt_token_ids, third.choices[0].token_ids) == (None, yes)


def test_agent_can_set_stop_strings_fewer_tokens_and_the_policy() -> None:
    async def asks(ask: Asks) -> int:
        await ask(model_request("a", max_tokens=7, stop=("x",)))
        await ask(model_request("b", max_tokens=10_000, policy="other"))
        return 0

    run = HostedRun(asks)
    lived(run)

    first, second = run.calls
    assert (first.sampling.max_tokens, first.sampling.stop) == (7, ("x",))
    assert (second.sampling.max_tokens, second.policy_id) == (256, "other")
