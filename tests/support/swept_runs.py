"""Small runs of every kind on a log in memory, and every way to harm one record of them."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from rollcall.consumers.agents.effects import Agent, CallModel, Finish, Reset, Step, Task, user
from rollcall.consumers.audit.report import Report
from rollcall.consumers.history.reading.local_programs import watched_world
from rollcall.consumers.history.rollouts.fork_request import fork_request, parent_of
from rollcall.inference.scripted import ScriptedEngine
from rollcall.sandbox.environment import Observation
from rollcall.schemas.agent_requests import AgentRequest, requests_text
from rollcall.schemas.errors import WireError
from rollcall.schemas.messages import (
    Event,
    Instance,
    Message,
    PolicyVersion,
    RolloutRequest,
    WeightsFile,
)
from rollcall.schemas.messages import Task as WireTask
from tests.support.journals import request
from tests.support.lake import crossing, walk
from tests.support.programs import ASKS
from tests.support.rig import Rig
from tests.support.whole_log import Whole, audited

DUET = f"{__name__}:duet"
HARMS = ("removed", "doubled", "swapped", "replaced")


def duet(task: Task) -> Agent:
    """Two policies side by side, and a step each."""
    yield [Reset("left"), Reset("right")]
    said = yield [CallModel([user("a")], "p"), CallModel([user("b")], "q")]
    yield [Step(said[0].text, "left"), Step(said[1].text, "right")]
    yield Finish("both")


class Counts:
    """An environment of one step."""

    replayable = True

    def open(self, seed: int) -> Observation:
        return Observation(f"room {seed}")

    def step(self, action: str) -> Observation:
        return Observation(f"after {action}", reward=1.0, terminated=True)

    def close(self) -> None:
        """Nothing is held."""


class ToyAgent(Counts):
    """A hosted agent without a process: it asks once, and ends with what it was told."""

    def open(self, seed: int) -> Observation:
        self.asked = AgentRequest("model", (Message("user", f"what of {seed % 7}?"),))
        return Observation(requests_text([self.asked], ()))

    def step(self, action: str) -> Observation:
        del action
        if self.asked.kind == "model":
            self.asked = AgentRequest("finish", text="done")
            return Observation(requests_text([self.asked], ()))
        return Observation("", terminated=True, info={"exit_code": 0})


def native() -> Rig:
    """Two steps of training, and what announces their versions."""
    whole = Whole(4)
    whole.log.topics[whole.topics.train_steps][0].records.clear()
    for version in (1, 2):
        before = f"{version - 1}/t" if version > 1 else ""
        whole.train(version, 2 * version - 2, 2 * version - 1, writer="t", predecessor=before)
    for version in (0, 1, 2):
        announce(whole, version)
    return whole


def announce(rig: Rig, version: int) -> None:
    file = WeightsFile("", "", 0, "", -1)
    record = PolicyVersion("p", version, version - 1, "run", version, "", file, b"\0" * 4, b"")
    rig.write(rig.topics.versions, "p", record)


def crew(rig: Rig, *policies: str, make: Callable[..., Any] | None = None) -> list[Any]:
    models = [rig.models(ScriptedEngine(name, walk)) for name in policies]
    return [rig.agents(), *models, rig.environments(make=make), rig.rewards()]


def lived(rig: Rig, loops: list[Any], *requests: RolloutRequest) -> Rig:
    for asked in requests:
        rig.ask(asked)
        rig.settle(*loops)
        rig.clock.pass_by(2.0)
    rig.commit(*loops)
    rig.settle(*loops)
    rig.commit(*loops)
    return rig


def hosted() -> Rig:
    rig = Rig()
    config = json.dumps({"agent": "toy"})
    asked = RolloutRequest("h", WireTask(), agent="hosted", agent_config=config, policy_id="p")
    both = [replace(asked, rollout_id=f"h{n}", sampling_seed=str(n)) for n in range(2)]
    return lived(rig, crew(rig, "p", make=lambda name, config: ToyAgent()), *both)


def boxed() -> Rig:
    """What became of each box is told beside the steps that it took."""
    rig = Rig()
    loops = crew(rig, "p", make=lambda name, config: Counts())
    lived(rig, loops, crossing(0), crossing(1))
    for number, kind in enumerate(("lent", "removed")):
        told = Instance(f"box{number}", "e1", kind, rollout_id=f"r{number}")
        rig.write(rig.topics.instances, told.box_id, told)
    return rig


def policies() -> Rig:
    rig = Rig(policies=("p", "q"))
    loops = crew(rig, "p", "q", make=lambda name, config: Counts())
    return lived(rig, loops, request("d0", DUET), request("d1", DUET))


def forked() -> Rig:
    rig = Rig()
    loops = crew(rig, "p")
    lived(rig, loops, crossing(0))
    made = fork_request(parent_of(rig, "r0", watched_world(5.0)), 2)  # type: ignore[arg-type]
    return lived(rig, loops, replace(made, rollout_id="fork"))


def cancelled() -> Rig:
    """One before it began, one while it waited, one whose answer is late; a last one ends."""
    rig = Rig()
    loops = crew(rig, "p")
    rig.order("cancel", rollout_id="c0")
    for rollout_id in ("c0", "c1"):
        rig.ask(request(rollout_id, ASKS))
    rig.settle(loops[0])
    rig.order("cancel", rollout_id="c1")
    rig.clock.pass_by(1.0)
    rig.settle(loops[0])
    rig.ask(request("c2", ASKS))
    rig.settle(loops[0])
    rig.order("cancel", rollout_id="c2")
    rig.clock.pass_by(1.0)
    rig.settle(*loops)
    return lived(rig, loops, crossing(2))


def refused() -> Rig:
    """One whose program nobody knows, one that nobody can read; a third ends as it should."""
    rig = Rig()
    loops = crew(rig, "p")
    rig.ask(request("bad", "no.such:program"))
    rig.pen.send(rig.topics.requests, b"junk", b"junk")
    return lived(rig, loops, crossing(2))


KINDS: dict[str, Callable[[], Rig]] = {
    each.__name__: each for each in (native, hosted, boxed, policies, forked, cancelled, refused)
}


class Harm:
    """One record of one partition, and what is done to it."""

    def __init__(self, rig: Rig, how: str, topic: str, partition: int, at: int) -> None:
        self.rig, self.how, self.topic, self.partition, self.at = rig, how, topic, partition, at
        self.kind = _kind_of(rig, topic, rig.log.topics[topic][partition].records[at])

    def missed(self, healthy: Report) -> bool:
        """Whether `verify` says the same as before; no harm at all is not missed."""
        held = self.rig.log.topics[self.topic][self.partition]
        before = list(held.records)
        if not self._do(held.records):
            return False
        try:
            report = audited(self.rig)
        finally:
            held.records[:] = before
        counted = report.duplicates, report.repeated, report.unreadable
        return report.ok and counted == (healthy.duplicates, healthy.repeated, healthy.unreadable)

    def _do(self, records: list[Any]) -> bool:
        at, own = self.at, records[self.at]
        if self.how == "removed":
            records[at] = None
        elif self.how == "doubled":
            records.append(own)
        elif self.how == "swapped":
            if at + 1 >= len(records) or records[at + 1][:2] == own[:2]:
                return False
            records[at], records[at + 1] = records[at + 1], own
        else:
            others = [each for each in records if each[1] != own[1]]
            if not others:
                return False
            records[at] = others[at % len(others)]
        return True


def _kind_of(rig: Rig, topic: str, stored: Any) -> str:
    expected = rig.topics.record_of(topic)
    if expected is None or stored[1] is None:
        return "letter" if expected is None else "tombstone"
    try:
        message = rig.codec.decode(stored[1], expected)
    except WireError:
        return "unreadable"
    if isinstance(message, Event):
        return type(message.body).__name__
    kind = getattr(message, "kind", "")
    return f"{expected.__name__}:{kind}" if kind else expected.__name__


def harms(rig: Rig) -> Iterator[Harm]:
    """Each single record of each topic, in every way."""
    for topic in rig.log.topic_names():
        for number, held in enumerate(rig.log.topics[topic]):
            for at in range(len(held.records)):
                for how in HARMS:
                    yield Harm(rig, how, topic, number, at)
