"""Two rollouts of one id in two journals: neither gets the other's answers."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall.consumers.agents.effects import Agent, CallModel, Finish, Reset, Step, Task, user
from rollcall.inference.scripted import ScriptedEngine
from rollcall.sandbox.environment import Observation
from rollcall.schemas.messages import Event, Message, ModelAnswered, ModelCall
from tests.support.journals import request
from tests.support.model_calls import call_of
from tests.support.rig import Rig, source_of
from tests.support.tiers import examples

WALKS = f"{__name__}:walks"


def says(call: ModelCall) -> str:
    return f"answer to {call.messages[-1].content}"


def asked(variant: int, partition: int) -> ModelCall:
    """One of several calls with the same id, distinguished by their content or their journal."""
    return call_of(
        body_digest=b"%d" % variant,
        messages=(Message("user", f"question {variant}"),),
        answer_partition=partition,
    )


CALLS = st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from(["ask", "abort", "turn"]))


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(CALLS, max_size=14), st.booleans())
def test_each_call_gets_its_own_answer(acts: list[tuple[int, int, str]], restarted: bool) -> None:
    rig = Rig(partitions=3)
    loop = rig.models(ScriptedEngine("p", says))
    wanted: Counter[tuple[bytes, int]] = Counter()
    aborted: set[int] = set()
    for number, (variant, partition, act) in enumerate(acts):
        call = asked(variant, partition)
        if act == "turn":
            loop.turn(0.0)
        elif act == "abort":
            aborted.add(partition)
            rig.write(rig.topics.calls("p"), "r", replace(call, kind="abort"), 0)
        else:
            wanted[call.body_digest, partition] += 1
            rig.write(rig.topics.calls("p"), "r", call, 0)
        if restarted and number == len(acts) // 2:
            source_of(loop).kill()
            loop = rig.models(ScriptedEngine("p", says), "m2")
    rig.settle(loop)
    rig.commit(loop)

    told: Counter[tuple[bytes, int]] = Counter()
    for record in rig.log.all(rig.topics.events):
        event = rig.codec.decode(record.value, Event)
        assert isinstance(event.body, ModelAnswered)
        assert event.body.text == f"answer to question {event.body_digest.decode()}"
        told[event.body_digest, record.partition] += 1
    assert set(told) <= set(wanted)
    unaborted = {place: n for place, n in wanted.items() if place[1] not in aborted}
    assert all(told[place] >= n for place, n in unaborted.items())
    asks = [act for _, _, act in acts if act != "turn"]
    assert rig.committed("t.models.p", rig.topics.calls("p")) == len(asks)


def walks(task: Task) -> Agent:
    """Two steps in an environment that shows its seed."""
    seen = yield Reset()
    answer = yield CallModel([user(f"{task.prompt}: {seen.text}")])
    seen = yield Step(answer.text)
    seen = yield Step("again")
    yield Finish(seen.text)


class Echo:
    """Returns its seed and its actions."""

    replayable = True

    def open(self, seed: int) -> Observation:
        self.heard = [str(seed)]
        return Observation(f"seed {seed}")

    def step(self, action: str) -> Observation:
        self.heard.append(action)
        return Observation("; ".join(self.heard))

    def close(self) -> None:
        pass


class Waits(Echo):
    """The same environment, asynchronous."""

    async def open(self, seed: int) -> Observation:  # type: ignore[override]
        return super().open(seed)

    async def step(self, action: str) -> Observation:  # type: ignore[override]
        return super().step(action)

    async def close(self) -> None:  # type: ignore[override]
        pass


@pytest.mark.parametrize("environment", [Echo, Waits])
@pytest.mark.parametrize("beside", [False, True])
def test_two_rollouts_of_one_id_have_separate_answers_and_environments(
    environment: type[Any], beside: bool
) -> None:
    rig = Rig(partitions=2)
    a1, a2 = rig.agents("a1"), rig.agents("a2")
    rig.settle(a1, a2)
    models = rig.models(ScriptedEngine("p", says))
    crew = [a1, a2, models, rig.environments(make=lambda name, config: environment())]

    for partition, seed in ((0, 11), (1, 22)):
        one = request("same", WALKS)
        rig.ask(replace(one, task=replace(one.task, seed=seed, prompt=f"q{seed}")), partition)
        rig.settle(*(crew[:2] if beside else crew))
    rig.settle(*crew)

    ends = {t.journal_partition: (t.status, t.failures, t.result) for t in rig.trajectories()}
    assert ends == {
        partition: ("finished", 0, f"{seed}; answer to q{seed}: seed {seed}; again")
        for partition, seed in ((0, 11), (1, 22))
    }
    rig.close()
