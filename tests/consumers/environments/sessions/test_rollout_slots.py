"""An agent and its task have a slot each: neither waits in vain for the other."""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall.consumers.environments.sessions.slots import RolloutSlots, Slots
from rollcall.inference.scripted import ScriptedEngine
from rollcall.sandbox.environment import kind_of, slots_beside
from rollcall.schemas.messages import EnvironmentStepped, Limits, RolloutRequest, Task
from tests.support.hosted_rollout import CoroutineHost, model_calls_of, plain
from tests.support.mortal_boxes import MortalHost
from tests.support.rig import Rig
from tests.support.tiers import examples
from tests.support.waiting import until

TASK = ("box",), ()
AGENT = ("hosted",), ("box",)
BEING = st.sampled_from([TASK, AGENT])


class LocalBoxes(MortalHost):
    default = "local"


@dataclass
class BesideBoxes(CoroutineHost):
    """Agents that are coroutines, beside boxes that isolate nothing."""

    boxes: MortalHost = field(default_factory=lambda: LocalBoxes(lambda *_: None))


def request(number: int, agent: dict[str, str], shell: dict[str, str]) -> RolloutRequest:
    config = json.dumps({"agent": "command", "argv": ["x"], **agent})
    limits = Limits(max_turns=6, step_timeout_s=3.0)
    task = Task("shell", environment_config=json.dumps(shell), prompt="do it")
    return RolloutRequest(f"r{number}", task, "hosted", config, policy_id="p", limits=limits)


@pytest.mark.parametrize(
    ("agent", "shell"),
    [({}, {}), ({}, {"box": "local"}), ({"box": "none"}, {})],
    ids=["as its task", "task on the host", "itself on the host"],
)
def test_moved_agents_and_starting_tasks_do_not_block_each_other(
    agent: dict[str, str], shell: dict[str, str]
) -> None:
    rig = Rig(partitions=2)
    hosts = BesideBoxes({"x": plain})
    one_each = {"box": 1, "hosted": 1}
    agents, models = rig.agents(), rig.models(ScriptedEngine("p", lambda call: "ls"))

    # Given a rollout whose worker is lost when its task is open, and before its agent has begun
    first = rig.environments("e1", slots=one_each, hosts=hosts.at)
    rig.ask(request(0, agent, shell))
    while not rig.events(EnvironmentStepped):
        agents.turn(0.0)
        first.turn(0.0)
    first.stop()

    # When the next worker is asked for that agent and for the task of another rollout
    rig.ask(request(1, agent, shell))
    loops = agents, models, rig.environments("e2", slots=one_each, hosts=hosts.at)

    def ended() -> int:
        for loop in loops:
            loop.turn(0.0)
        return len(rig.trajectories())

    until(lambda: ended() == 2, 60, lambda: f"{ended()} have ended")

    # Then both have one of each in turn, and no time counts during the wait for a slot
    found = [(each.status, each.attempt, each.reason) for each in rig.trajectories()]
    assert found == [("finished", 1, "")] * 2
    assert [len(model_calls_of(rig, f"r{number}")) for number in (0, 1)] == [3, 3]
    rig.close()


def test_an_agents_config_names_the_extra_slots_it_needs() -> None:
    kind = kind_of("hosted")

    assert kind.slots == ("hosted",)
    for box in ("own", "task", "beside", "none"):
        told = {"box": box, "task": {"environment": "shell"}}
        assert slots_beside("hosted", kind, json.dumps(told)) == BOX
    for config in ({}, {"task": {"environment": ""}}, {"task": {"environment": "gymnasium"}}):
        assert slots_beside("hosted", kind, json.dumps(config)) == ()
    assert slots_beside("shell", kind_of("shell"), "{}") == ()


BOX = ("box",)


@settings(deadline=None, max_examples=examples(80))
@given(
    st.lists(
        st.tuples(st.integers(0, 3), BEING, st.sampled_from(["come", "come", "go", "turn"])),
        max_size=60,
    )
)
def test_slots_stay_exact_and_an_agents_tasks_get_theirs(
    acts: list[tuple[int, tuple[tuple[str, ...], tuple[str, ...]], str]],
) -> None:
    most = {"box": 2, "hosted": 2}

    async def live() -> None:
        slots = Slots(most)
        rollouts = [RolloutSlots(slots) for _ in range(4)]
        there: dict[tuple[int, tuple[str, ...]], asyncio.Task[None]] = {}
        holds = Counter[tuple[int, str]]()

        async def hold(
            number: int, own: tuple[str, ...], beside: tuple[str, ...], leaves: asyncio.Event
        ) -> None:
            await rollouts[number].take(own, beside, lambda: None)
            try:
                holds.update((number, name) for name in own)
                for name, count in most.items():
                    assert sum(holds[other, name] for other in range(4)) <= count
                await leaves.wait()
            finally:
                holds.subtract((number, name) for name in own)
                rollouts[number].give(own, beside)

        for number, (own, beside), act in acts:
            key = number, own
            if act == "come" and (key not in there or there[key].done()):
                there[key] = asyncio.create_task(hold(number, own, beside, asyncio.Event()))
            elif act == "go" and key in there:
                there[key].cancel()
            for _ in range(3):
                await asyncio.sleep(0)
            agents = [each for each in range(4) if holds[each, "hosted"]]
            tasks = {each for each in range(4) if holds[each, "box"]}
            assert len({*agents} | tasks) <= most["box"], "each of them has a box, or has it kept"

        # Each rollout that continues with its slots reaches its end, in any order
        for _ in range(20):
            for key, task in there.items():
                if holds[key[0], key[1][0]]:
                    task.cancel()
            await asyncio.gather(*(t for t in there.values() if t.cancelling()),
                                 return_exceptions=True)  # fmt: skip
            for _ in range(3):
                await asyncio.sleep(0)
        assert all(task.done() for task in there.values())
        assert (slots.waiting, slots._free) == (0, most), "none is lost, none is dealt twice"

    asyncio.run(live())
