"""Boxes that die at any moment: the episode is rebuilt, and the failure is not the agent's."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rollcall.sandbox.boxes.box import Box
from rollcall.sandbox.environment import AnyEnvironment, make_environment
from rollcall.sandbox.sessions import Sessions
from rollcall.sandbox.tasks.harbor import HarborTask, read_task
from rollcall.sandbox.tasks.task_names import environment_config
from rollcall.schemas.errors import WorkFailed
from rollcall.schemas.messages import EnvironmentStep, EnvironmentStepped
from tests.support.engines import has, left_out
from tests.support.mortal_boxes import MortalHost, kill
from tests.support.task_directories import write_task

ACTIONS = (
    "sed -i 's/a - b/a + b/' sums.py",
    "ls; false",
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
)
CHECK = "grep -q 'a + b' sums.py"
TRIES = 3
STARTS = 20
"""More programs than an episode starts in one box."""
Fate = Callable[[Box, int, int, bool], None]


@pytest.fixture(params=["local", "bubblewrap"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "bubblewrap" and not has("bwrap"):
        left_out("bubblewrap", "episodes in its boxes that die")
    return str(request.param)


@pytest.fixture
def task(tmp_path: Path) -> HarborTask:
    return read_task(write_task(tmp_path / "sums"))


class Asking:
    """Asks for the steps of one rollout as its agent does, and again as the fold does."""

    def __init__(self, host: MortalHost, task: HarborTask, kind: str, **config: Any) -> None:
        self.config = json.dumps(
            {**environment_config(task, box=kind), "check": CHECK, "timeout_s": 5.0, **config}
        )
        self.host = host
        self.sessions = Sessions(self.make)
        self.codes: list[str] = []

    def make(self, name: str, config: str) -> AnyEnvironment:
        return make_environment(name, config, self.host)  # type: ignore[arg-type]

    async def lived(self, actions: tuple[str, ...]) -> list[EnvironmentStepped]:
        """All answers; raises WorkFailed for a permanent failure."""
        try:
            seen = [await self.asked(0, None, ())]
            for index, action in enumerate(actions):
                seen.append(await self.asked(index, action, actions[:index]))
            return seen
        finally:
            await self.sessions.close()

    def step(self, index: int, action: str | None) -> EnvironmentStep:
        kind = "reset" if action is None else "step"
        name = f"{kind}{index}.{len(self.codes)}".encode()
        return EnvironmentStep(
            "r", 1, index, 0, name, b"", 0, 0, kind, "shell", "main", self.config, 7, index,
            action or "",
        )  # fmt: skip

    async def asked(
        self, index: int, action: str | None, before: tuple[str, ...]
    ) -> EnvironmentStepped:
        history, tries = None, 0
        while True:
            step = replace(self.step(index, action), history=history)
            try:
                return await self.sessions.handle(step)
            except WorkFailed as error:
                self.codes.append(error.code)
                free = error.code == "history_needed" and history is None
                history = before if free else history
                tries += not free
                if not error.retriable or tries == TRIES:
                    raise


def told(
    task: HarborTask, kind: str, fate: Fate, **config: Any
) -> tuple[list[EnvironmentStepped], Asking]:
    asking = Asking(MortalHost(fate), task, kind, **config)
    return asyncio.run(asking.lived(ACTIONS)), asking


@dataclass
class Death:
    """Kills a box before or after the n-th program starts in it."""

    moment: int
    started: bool
    most: int = 1
    count: int = 0

    def __call__(self, box: Box, number: int, nth: int, started: bool) -> None:
        if (nth, started) == (self.moment, self.started) and self.count < self.most:
            self.count += 1
            kill(box)


def never(box: Box, number: int, nth: int, started: bool) -> None:
    """Nothing happens."""


@pytest.mark.parametrize("started", [False, True])
def test_episode_is_rebuilt_in_another_box_after_box_death(
    kind: str, task: HarborTask, started: bool
) -> None:
    unbroken, _ = told(task, kind, never)
    assert unbroken[-1].reward == 1.0

    for moment in range(STARTS):
        death = Death(moment, started)

        lived, asking = told(task, kind, death)

        assert lived == unbroken, moment
        assert ("box_died" in asking.codes) == (death.count > 0), (moment, asking.codes)
        assert set(asking.codes) <= {"box_died", "history_needed"}
        assert any(asking.host.reasons) == (death.count > 0)
        if not death.count:
            assert moment >= 3
            return
    pytest.fail("an episode starts more programs than were looked at")


def test_episode_fails_with_box_died_if_every_box_dies(kind: str, task: HarborTask) -> None:
    for moment in (0, 1, 2):
        with pytest.raises(WorkFailed) as failed:
            told(task, kind, Death(moment, True, most=99))
        assert failed.value.code == "box_died"


@pytest.mark.parametrize("delay_s", [0.0, 0.002, 0.01, 0.05])
def test_box_death_during_a_command_fails_with_box_died(
    kind: str, task: HarborTask, delay_s: float
) -> None:
    commands = ("sh -c 'kill -STOP $$'", "sleep 4", "sh -c 'sleep 4; true' | cat", "yes >/dev/null")

    async def one(command: str) -> None:
        mortal: list[Box] = []
        host = MortalHost(lambda box, *rest: mortal.append(box))
        asking = Asking(host, task, kind)
        try:
            await asking.asked(0, None, ())
            asyncio.get_running_loop().call_later(delay_s, kill, mortal[-1])
            with pytest.raises(WorkFailed) as failed:
                await asking.sessions.handle(asking.step(0, command))
        finally:
            await asking.sessions.close()
        assert (failed.value.code, failed.value.retriable) == ("box_died", True), command

    for command in commands:
        asyncio.run(one(command))


def test_failed_or_killed_command_is_reported_by_its_exit_code(kind: str, task: HarborTask) -> None:
    commands = ("sh -c 'kill -9 $$'", "kill -9 $$", "exit 3", "kill -9 -1; echo still", "echo on")
    asking = Asking(MortalHost(never), task, kind)
    if kind == "local":  # there it would kill all processes of the host's user
        commands = tuple(each for each in commands if "-1" not in each)

    seen = asyncio.run(asking.lived(commands))

    codes = [json.loads(each.info)["exit_code"] for each in seen[1:]]
    assert codes[:3] == [137, 137, 3]
    assert codes[-1] == 0
    assert asking.host.lent == 1
    assert asking.codes == []


def test_step_after_a_cancelled_step_is_rebuilt_from_history(kind: str, task: HarborTask) -> None:
    async def whole() -> EnvironmentStepped:
        asking = Asking(MortalHost(never), task, kind, timeout_s=60.0)
        first = "echo x >> told; test $(wc -l < told) = 2 || sleep 60"
        try:
            await asking.asked(0, None, ())
            running = asyncio.create_task(asking.asked(0, first, ()))
            while not await _told(asking):
                await asyncio.sleep(0)
            running.cancel()
            await asyncio.wait([running])
            return await asking.asked(0, "echo x >> told; cat told", ())
        finally:
            await asking.sessions.close()

    assert asyncio.run(whole()).text == "exit code 0\nx\n"


async def _told(asking: Asking) -> bool:
    """Whether the command has reached its second part."""
    (session,) = [each.sessions["main"] for each in asking.sessions._rollouts.values()]
    box = session.environment._box  # type: ignore[union-attr]
    return bool((await box.run(("cat", "told"))).output == "x\n")
