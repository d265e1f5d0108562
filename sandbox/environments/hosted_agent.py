"""An agent's process as an environment: what it asks is shown, what it is told is the action.

A step tells the replies of its action (`schemas.asks.AgentAction`), each to the first request that
waits for it, and shows which requests are new. An ask is named by its digest and its occurrence,
so equal ones may come in any order. A reply for which no request waits belongs to a history that
the process, or another one in its place, has yet to live again: until it has asked for all of
them nothing is shown, and what it asks besides is held back.

A process that a signal ends is begun anew, a few times in a session, with a line of its own; it
lives again what was told so far. One that does not ask again what was asked then has diverged:
`session_lost`, and the rollout may try another attempt. So it may at once where a process in the
box of its task was ended so: what it had done there cannot be undone for another one.

While some requests wait for the model, whoever was told goes on, and may soon ask for more. A step
waits a little for that: `sandbox.environments.patience`.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from sandbox.agents.agent_box import (
    BESIDE,
    DRIVER,
    HOME_IN_TASK,
    LOCAL,
    PORT,
    AgentBox,
    Where,
)
from sandbox.agents.agent_mounts import mounts
from sandbox.agents.agent_processes import AgentExit
from sandbox.boxes.box import Box, Spec
from sandbox.environment import Observation, kind_of
from sandbox.environments.patience import Patience
from sandbox.environments.told_history import ToldHistory
from sandbox.host import Host, Line, Process
from schemas.asks import STARVED, AgentAction, Ask, ModelReply, Reply, StepReply, text_of, told_by
from schemas.errors import Unavailable, WorkFailed
from schemas.foreign_text import plain
from schemas.known_asks import KnownPrints

CATCH_UP_S = 10.0
"""A process that lives its history again may take so long from one recorded ask to the next, while
something else that it asked is held back."""
RESTARTS = 2
SAID_CHARS = 300

log = structlog.get_logger()


class HostedAgent:
    """One process, its line, and what it was told."""

    replayable = True
    slot = "hosted"

    def __init__(
        self,
        agent: str,
        policies: Sequence[str],
        task: Mapping[str, Any],
        host: Host,
        box: Where = "none",
    ) -> None:
        """`task` is what the agent is told to do; its `config` may name catch_up_s, restarts.

        `box` says where it lives: `sandbox.agents.agent_box`.
        """
        self._agent, self._policies, self._task, self._host = agent, policies, task, host
        self._where = box
        config = task.get("config", {})
        self._catch_up_s = float(config.get("catch_up_s", CATCH_UP_S))
        self._restarts = int(config.get("restarts", RESTARTS))
        self._box: Box | None = None
        """Its own, to be given back."""
        self._entered: Box | None = None
        """That of its task, which ends with the episode."""
        self._killed_before = 0
        """Of those in it, for want of memory."""
        self._line: Line | None = None
        self._process: Process | None = None
        self._exit: asyncio.Task[AgentExit] | None = None
        self._told = ToldHistory()
        self._open: Counter[str] = Counter()
        """Asks that were shown, or that the rollout says are open: nobody else has to hear them."""
        self._known = KnownPrints()
        self._patience = Patience(self._now)

    @staticmethod
    def slots_beside(config: Mapping[str, Any]) -> tuple[str, ...]:
        """Those of its task's environment, wherever the agent itself lives.

        Whoever lives in a box, or would where boxes isolate, is beside a shell: agents workers that
        did not name the environment yet named that.
        """
        environment = config.get("task", {}).get("environment")
        slots = kind_of(environment).slots if environment else ()
        lives_in_box = config.get("box", "none") != "none"
        return (*slots, "box") if lives_in_box and "box" not in slots else slots

    async def open(self, seed: int) -> Observation:
        """Start the process and wait until it asks. Raises WorkFailed, as starting it does."""
        self._task = {**self._task, "seed": seed}
        await self._begin()
        return await self._next()

    async def step(self, action: str) -> Observation:
        """Tell what is ready, and wait until something is asked.

        Raises WorkFailed(`session_lost`), and WireError for an action that is none.
        """
        told = AgentAction.of(action)
        late = self._look()
        self._patience.learn(late=bool(late))
        self._known.act(told)
        self._open = Counter(told.open)
        self._told.append(action)
        for reply in told.replies:
            self._patience.told(reply.d)
            self._tell(reply)
        await asyncio.sleep(0)  # they are written first: whoever waits for them goes on meanwhile
        return await self._next(len(told.replies), len(late))

    async def close(self) -> None:
        """End the process and its line. May be called twice."""
        line, self._line = self._line, None
        process, self._process = self._process, None
        exit_, self._exit = self._exit, None
        if exit_:
            exit_.cancel()
        if line:
            await line.close()
        if process:
            await process.close()
        box, self._box = self._box, None
        if box:
            await self._host.boxes.give_back(box)

    async def _begin(self) -> None:
        """A process and a line for it, and all that was told still to be asked for."""
        self._told.begin_again()
        config = self._task.get("config", {})
        home = await self._home(config)
        listener = await home.box.listen(PORT) if home else None
        self._line = line = await self._host.line(self._policies, self._task, listener)
        self._process = process = await self._host.start(
            self._agent, config, url=line.url, key=line.key, box=home
        )
        self._exit = asyncio.create_task(process.wait())
        self._exit.add_done_callback(lambda _: line.wake())

    async def _home(self, config: Mapping[str, Any]) -> AgentBox | None:
        """The box that it is to live in; None where it lives in none. Raises WorkFailed."""
        beside = self._where == BESIDE
        if self._where == "none" or (beside and self._host.boxes.default == LOCAL):
            return None
        if self._where == "task":
            self._entered = self._host.boxes.enter_task()
            self._killed_before = (await self._entered.usage()).oom_kills
            return AgentBox(self._entered, HOME_IN_TASK)
        imports = await self._host.imports(self._agent, config)
        spec = Spec(mounts=await asyncio.to_thread(mounts, config, imports))
        self._box = box = await self._host.boxes.lend(DRIVER, spec, "ephemeral")
        return AgentBox(box, box.directory.decode())

    def _tell(self, reply: Reply) -> None:
        assert self._line is not None
        try:
            self._line.tell(reply)
        except KeyError:  # nobody has asked for it yet
            self._told.wait(reply)

    def _look(self) -> list[Ask]:
        """What was asked and is not known to the rollout; what is recorded is told at once."""
        assert self._line is not None
        heard, new = Counter(self._open), []
        for ask in self._line.asked():
            self._known.see(ask)
            if (reply := self._told.asked(ask.d)) is not None:
                self._line.tell(reply)
            elif heard[ask.d]:
                heard[ask.d] -= 1
            else:
                new.append(ask)
        return new

    async def _next(self, told: int = 0, late: int = 0) -> Observation:
        """Wait for what is to be shown, after so many replies were told and asks came before."""
        await self._catch_up()
        holds_until = self._patience.until()
        while True:
            new, ended = self._look(), self._exit is not None and self._exit.done()
            if ended:
                if (ending := await self._ended()) is not None:
                    return ending
                await self._catch_up()
                continue
            others = bool(self._open) or late > 0
            if new and (not others or len(new) >= told + late):
                return self._shown(new)
            left = holds_until - self._now() if others else None
            if left is not None and left <= 0:
                self._patience.end()
                return self._shown(new)
            await self._change(left)

    async def _catch_up(self) -> None:
        """Wait until all that is recorded was asked for; raises WorkFailed(`session_lost`)."""
        left, since = self._told.left, self._now()
        while left:
            held = self._look()
            if self._told.left < left or not held:
                left, since = self._told.left, self._now()
            elif self._now() - since >= self._catch_up_s:
                raise self._diverged(held)
            if left and self._exit is not None and self._exit.done():
                if await self._ended() is not None:
                    raise self._diverged(held)
            elif left:
                await self._change(since + self._catch_up_s - self._now() if held else None)

    async def _change(self, timeout_s: float | None) -> None:
        """Until something was asked, the process has ended (which wakes the line), or so long."""
        assert self._line is not None
        await self._line.wait(timeout_s)

    def _shown(self, new: Sequence[Ask]) -> Observation:
        assert self._line is not None
        told = told_by(new, self._known.at_both_ends(), self._known.by_name())
        for each in told:
            if each.same < each.ask.left_out:
                msg = f"ask {each.ask.d} cannot be told again: what it went on from is forgotten"
                raise WorkFailed("session_lost", msg, retriable=False)
        if len(new) == 1 and not self._open:
            self._line.shorten(told[0].ask, told[0].ask.shortened(told[0].own, told[0].same))
        for ask in new:
            self._patience.shown(ask.d)
            self._open[ask.d] += 1
        return Observation(text_of(told))

    async def _ended(self) -> Observation | None:
        """How the process ended; None where it was begun anew."""
        assert self._exit is not None
        ended = self._exit.result()
        over = self._entered is not None and self._over(self._entered)
        starved = self._entered is not None and await self._starved(self._entered)
        over = over or starved
        if ended.code is None and self._entered is not None and not over:
            msg = f"agent {self._agent!r} was ended by signal {ended.signal} in its task's box"
            raise WorkFailed("session_lost", msg, retriable=False)
        if ended.code is None and self._restarts > 0 and not over:
            self._restarts -= 1
            log.warning("agent_restarted", session=self._host.place, signal=ended.signal)
            await self.close()
            await self._begin()
            return None
        info: dict[str, object] = {
            "exit_code": ended.code, "signal": ended.signal, "last_words": ended.last_words
        }  # fmt: skip
        if starved:
            info[STARVED] = True
        if len(ended.output) > len(ended.last_words.encode()):
            info |= {"output": await self._kept(ended), "output_bytes": ended.output_bytes}
        return Observation(text_of([]), terminated=True, info=info)

    def _over(self, box: Box) -> bool:
        """Whether its task's environment has ended the episode, and with it all in its box."""
        return box.episode_over or not self._host.boxes.holds(box)

    async def _starved(self, box: Box) -> bool:
        """Whether somebody was killed in its task's box since all memory of that was taken.

        By whatever was done there: so it is at its end, as one that ends itself.
        """
        return (await box.usage()).oom_kills > self._killed_before

    async def _kept(self, ended: AgentExit) -> str:
        """The reference of its output, where the store takes it."""
        try:
            return await asyncio.to_thread(self._host.keep, "output.txt", ended.output)
        except Unavailable as error:
            log.warning("agent_output_lost", session=self._host.place, error=str(error))
            return ""

    def _diverged(self, held: Sequence[Ask]) -> WorkFailed:
        """The process does not ask what was asked then."""
        first = self._told.first_left()
        asks = f"asks {held[0].d[:8]}: {_last_of(held[0])}" if held else "asks nothing"
        msg = plain(
            f"agent {self._agent!r} has diverged from its history: what was told "
            f"{first.d[:8]} ({_said(first)}) is not asked for, and it {asks}"
        )
        log.warning("agent_diverged", session=self._host.place, difference=msg)
        return WorkFailed("session_lost", msg, retriable=False)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _last_of(ask: Ask) -> str:
    """The end of what is asked, for people."""
    text = ask.messages[-1].content if ask.messages else ask.text
    return repr(text[-SAID_CHARS:])


def _said(reply: Reply) -> str:
    """The beginning of what was told, for people."""
    if isinstance(reply, ModelReply):
        text = reply.choices[0].text if reply.choices else ""
    elif isinstance(reply, StepReply):
        text = reply.text
    else:
        text = reply.error
    return repr(text[:SAID_CHARS])
