"""An agent's process as an environment: its requests are observations, replies are actions.

A step delivers the replies of its action (`AgentAction`), each to the first request that waits for
it, and shows the new requests. A request is identified by its digest and its occurrence, so equal
ones may come in any order. A reply without a waiting request belongs to the session's history,
which the process, or its replacement, has yet to replay: until it has requested all those replies
nothing is shown, and its other requests are held back.

A process that a signal ends is restarted, a few times in a session, with a new endpoint, and
replays all replies so far. A process that does not repeat the recorded requests has diverged:
`session_lost`, and the rollout may try another attempt. The same error is raised at once if a
process in the box of its task was ended by a signal: its changes there cannot be undone for a
replacement.

While some requests wait for the model, callers that got a reply continue, and may soon send more.
A step waits a little for that: `rollcall.sandbox.environments.reply_history`.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from rollcall.sandbox.agents.agent_box import (
    BESIDE,
    DRIVER,
    HOME_IN_TASK,
    LOCAL,
    PORT,
    AgentBox,
    Where,
)
from rollcall.sandbox.agents.agent_processes import AgentExit
from rollcall.sandbox.boxes.box import Box, Spec
from rollcall.sandbox.environment import Observation, kind_of
from rollcall.sandbox.environments.reply_history import AdaptiveWait, ReplyHistory
from rollcall.sandbox.host import AgentEndpoint, Host, Process
from rollcall.sandbox.private_places import mounts
from rollcall.schemas.agent_requests import (
    STARVED,
    AgentAction,
    AgentRequest,
    ModelReply,
    Reply,
    StepReply,
    choose_bases,
    differences_text,
)
from rollcall.schemas.errors import FailureCode, Unavailable, WorkFailed
from rollcall.schemas.known_requests import KnownFingerprints
from rollcall.schemas.untrusted_text import clean_text

CATCH_UP_S = 10.0
"""Seconds that a process may take from one recorded request to the next while it replays its
history and another request of it is held back."""
RESTARTS = 2
QUOTED_CHARS = 300

log = structlog.get_logger()


class HostedAgent:
    """One agent process, its endpoint, and the replies it was given."""

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
        """Prepare a session; `task` is the agent's task, its `config` may set catch_up_s, restarts.

        `box` is where the agent runs: `rollcall.sandbox.agents.agent_box`.
        """
        self._agent, self._policies, self._task, self._host = agent, policies, task, host
        self._box_choice = box
        config = task.get("config", {})
        self._catch_up_s = float(config.get("catch_up_s", CATCH_UP_S))
        self._restarts = int(config.get("restarts", RESTARTS))
        self._box: Box | None = None
        """The agent's own box, which must be given back."""
        self._entered: Box | None = None
        """The box of its task, which ends with the episode."""
        self._killed_before = 0
        """The number of OOM kills in the task's box before the agent started."""
        self._endpoint: AgentEndpoint | None = None
        self._process: Process | None = None
        self._exit: asyncio.Task[AgentExit] | None = None
        self._history = ReplyHistory()
        self._open: Counter[str] = Counter()
        """Requests that were shown, or that the rollout has as open: they are not shown again."""
        self._known = KnownFingerprints()
        self._wait = AdaptiveWait(self._now)

    @staticmethod
    def slots_beside(config: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the slots of its task's environment, which do not depend on the agent's box."""
        environment = config.get("task", {}).get("environment")
        return kind_of(environment).slots if environment else ()

    async def open(self, seed: int) -> Observation:
        """Start the process and wait for its first request. Raises WorkFailed if that fails."""
        self._task = {**self._task, "seed": seed}
        await self._start()
        return await self._next_observation()

    async def step(self, action: str) -> Observation:
        """Deliver the ready replies, and wait for new requests.

        Raises WorkFailed(`session_lost`), and WireError for a malformed action.
        """
        ready = AgentAction.of(action)
        late = self._new_requests()
        self._wait.learn(late=bool(late))
        self._known.apply(ready)
        self._open = Counter(ready.open)
        self._history.append(action)
        for reply in ready.replies:
            self._wait.replied(reply.d)
            self._deliver(reply)
        await asyncio.sleep(0)  # let the replies be written first, so that their callers continue
        return await self._next_observation(len(ready.replies), len(late))

    async def close(self) -> None:
        """End the process and its endpoint. May be called twice."""
        endpoint, self._endpoint = self._endpoint, None
        process, self._process = self._process, None
        exit_, self._exit = self._exit, None
        if exit_:
            exit_.cancel()
        if endpoint:
            await endpoint.close()
        if process:
            await process.close()
        box, self._box = self._box, None
        if box:
            await self._host.boxes.give_back(box)

    async def _start(self) -> None:
        """Start a process with an endpoint; it has to replay all earlier replies."""
        self._history.start_replay()
        config = self._task.get("config", {})
        home = await self._agent_box(config)
        listener = await home.box.listen(PORT) if home else None
        self._endpoint = endpoint = await self._host.open_endpoint(
            self._policies, self._task, listener
        )
        self._process = process = await self._host.start(
            self._agent, config, url=endpoint.url, key=endpoint.key, box=home
        )
        self._exit = asyncio.create_task(process.wait())
        self._exit.add_done_callback(lambda _: endpoint.wake())

    async def _agent_box(self, config: Mapping[str, Any]) -> AgentBox | None:
        """Return the box that the agent runs in; None if it runs in none. Raises WorkFailed."""
        beside = self._box_choice == BESIDE
        if self._box_choice == "none" or (beside and self._host.boxes.default == LOCAL):
            return None
        if self._box_choice == "task":
            self._entered = self._host.boxes.enter_task()
            self._killed_before = (await self._entered.usage()).oom_kills
            return AgentBox(self._entered, HOME_IN_TASK)
        imports = await self._host.imports(self._agent, config)
        spec = Spec(mounts=await asyncio.to_thread(mounts, config, imports))
        self._box = box = await self._host.boxes.lend(DRIVER, spec, "ephemeral")
        return AgentBox(box, box.directory.decode())

    def _deliver(self, reply: Reply) -> None:
        assert self._endpoint is not None
        try:
            self._endpoint.answer(reply)
        except KeyError:  # the process has not sent that request yet
            self._history.queue(reply)

    def _new_requests(self) -> list[AgentRequest]:
        """Return requests that are new to the rollout; answer recorded ones from the history."""
        assert self._endpoint is not None
        shown, new = Counter(self._open), []
        for request in self._endpoint.open_requests():
            self._known.add(request)
            if (reply := self._history.reply_to(request.d)) is not None:
                self._endpoint.answer(reply)
            elif shown[request.d]:
                shown[request.d] -= 1
            else:
                new.append(request)
        return new

    async def _next_observation(self, delivered: int = 0, late: int = 0) -> Observation:
        """Wait for the next observation.

        `delivered` replies were given in this step; `late` requests had come before it.
        """
        await self._catch_up()
        holds_until = self._wait.until()
        while True:
            new, ended = self._new_requests(), self._exit is not None and self._exit.done()
            if ended:
                if (ending := await self._end_or_restart()) is not None:
                    return ending
                await self._catch_up()
                continue
            others = bool(self._open) or late > 0
            # There are as many requests as callers that may send one, so none is missing.
            if new and (not others or len(new) >= delivered + late):
                return self._observation(new)
            left = holds_until - self._now() if others else None
            if left is not None and left <= 0:
                self._wait.end()
                return self._observation(new)
            await self._wait_for_change(left)

    async def _catch_up(self) -> None:
        """Wait until the process has replayed its history. Raises WorkFailed(`session_lost`)."""
        left, since = self._history.left, self._now()
        while left:
            held = self._new_requests()
            # The deadline runs only while another request is held: else it may be computing.
            if self._history.left < left or not held:
                left, since = self._history.left, self._now()
            elif self._now() - since >= self._catch_up_s:
                raise self._divergence(held)
            if left and self._exit is not None and self._exit.done():
                if await self._end_or_restart() is not None:
                    raise self._divergence(held)
            elif left:
                await self._wait_for_change(
                    since + self._catch_up_s - self._now() if held else None
                )

    async def _wait_for_change(self, timeout_s: float | None) -> None:
        """Wait for a request, the end of the process (which wakes the endpoint), or the timeout."""
        assert self._endpoint is not None
        await self._endpoint.wait(timeout_s)

    def _observation(self, new: Sequence[AgentRequest]) -> Observation:
        assert self._endpoint is not None
        chosen = choose_bases(new, self._known.at_both_ends(), self._known.by_name())
        for each in chosen:
            if each.same < each.request.left_out:
                msg = f"request {each.request.d} continues one that is not known any more"
                raise WorkFailed(FailureCode.SESSION_LOST, msg, retriable=False)
        # To save memory, hold the only open request without the messages that the rollout has.
        if len(new) == 1 and not self._open:
            only = chosen[0]
            short = only.request.shortened(only.fingerprint, only.same)
            self._endpoint.shorten(only.request, short)
        for request in new:
            self._wait.shown(request.d)
            self._open[request.d] += 1
        return Observation(differences_text(chosen))

    async def _end_or_restart(self) -> Observation | None:
        """Return the last observation of an ended process; None if it was restarted."""
        assert self._exit is not None
        ended = self._exit.result()
        over = self._entered is not None and self._episode_over(self._entered)
        starved = self._entered is not None and await self._out_of_memory(self._entered)
        over = over or starved
        if ended.code is None and self._entered is not None and not over:
            msg = f"agent {self._agent!r} was ended by signal {ended.signal} in its task's box"
            raise WorkFailed(FailureCode.SESSION_LOST, msg, retriable=False)
        if ended.code is None and self._restarts > 0 and not over:
            self._restarts -= 1
            log.warning("agent_restarted", session=self._host.place, signal=ended.signal)
            await self.close()
            await self._start()
            return None
        info: dict[str, object] = {
            "exit_code": ended.code,
            "signal": ended.signal,
            "last_words": ended.last_words,
        }
        if starved:
            info[STARVED] = True
        if len(ended.output) > len(ended.last_words.encode()):
            info |= {"output": await self._stored_output(ended), "output_bytes": ended.output_bytes}
        return Observation(differences_text([]), terminated=True, info=info)

    def _episode_over(self, box: Box) -> bool:
        """Return True if its task's environment has ended the episode and all in its box."""
        return box.episode_over or not self._host.boxes.holds(box)

    async def _out_of_memory(self, box: Box) -> bool:
        """Return True if a process in its task's box was OOM-killed since the agent started.

        The episode's own commands caused that, so the agent counts as ended, not as lost.
        """
        return (await box.usage()).oom_kills > self._killed_before

    async def _stored_output(self, ended: AgentExit) -> str:
        """Store its output and return the reference; empty if the store is unavailable."""
        try:
            return await asyncio.to_thread(self._host.keep, "output.txt", ended.output)
        except Unavailable as error:
            log.warning("agent_output_lost", session=self._host.place, error=str(error))
            return ""

    def _divergence(self, held: Sequence[AgentRequest]) -> WorkFailed:
        """Return the error for a process that does not repeat its recorded requests."""
        first = self._history.first_left()
        instead = f"sent {held[0].d[:8]}: {_end_of_text(held[0])}" if held else "sent nothing"
        msg = clean_text(
            f"agent {self._agent!r} has diverged from its history: it did not send request "
            f"{first.d[:8]}, with the reply {_begin_of_text(first)}, and {instead}"
        )
        log.warning("agent_diverged", session=self._host.place, difference=msg)
        return WorkFailed(FailureCode.SESSION_LOST, msg, retriable=False)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _end_of_text(request: AgentRequest) -> str:
    """Return the end of a request's text, for an error message."""
    text = request.messages[-1].content if request.messages else request.text
    return repr(text[-QUOTED_CHARS:])


def _begin_of_text(reply: Reply) -> str:
    """Return the beginning of a reply's text, for an error message."""
    if isinstance(reply, ModelReply):
        text = reply.choices[0].text if reply.choices else ""
    elif isinstance(reply, StepReply):
        text = reply.text
    else:
        text = reply.error
    return repr(text[:QUOTED_CHARS])
