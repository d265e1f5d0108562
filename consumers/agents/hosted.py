"""The agent program `hosted`: connects a rollout to an agent's process, as an environment.

The process's requests are observations, and the replies to it are actions
(`rollcall.schemas.agent_requests`). A model request becomes a call, a step request a step of the
task's environment in session `main`. All of them run concurrently; ready replies are sent as soon
as the process's last observation has arrived. The program knows no endpoint, no dialect and no
process.

A request beyond the limits is answered with 404, meaning that the rollout is over: the agent can
then end, and its work is graded. If the last call or step before the agent's end failed through no
fault of its own, its task was not done: the rollout fails with the code of that failure.
"""

import json
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any

from rollcall.consumers.agents.agent_replies import FINAL, failed_reply, reply_of, system_fault_in
from rollcall.consumers.agents.effects import (
    Agent,
    AsCompleted,
    CallModel,
    Completed,
    EnvironmentAnswer,
    Finish,
    ModelAnswer,
    Reset,
    Step,
    Task,
    WishFailed,
)
from rollcall.consumers.agents.fold.checks import RESULT_CHARS
from rollcall.sandbox.agents.agent_box import FINISH_WORD, where
from rollcall.schemas.agent_requests import (
    STARVED,
    AgentAction,
    AgentRequest,
    ErrorReply,
    Reply,
    StepReply,
    requests_of,
)
from rollcall.schemas.errors import FailureCode, ProgramFailed
from rollcall.schemas.known_requests import KnownRequests
from rollcall.schemas.messages import Sampling

AGENT, MAIN = "agent", "main"
RESERVE = 8
"""The number of effects kept in reserve, to tell the agent that none are left."""


def hosted(task: Task) -> Agent:
    """Let the agent that `agent_config.agent` names do the task, in a process of its own."""
    yield from HostedRollout(task).run()


@dataclass(slots=True, eq=False)
class _OpenRequest:
    """One occurrence of a request, and its outcomes so far."""

    request: AgentRequest
    outcomes: dict[int, ModelAnswer | WishFailed] = field(default_factory=dict)


class HostedRollout:
    """The state of one process: its open requests, and the replies to send."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.known = KnownRequests()
        self.waiting: list[_OpenRequest] = []
        """Received and not answered."""
        self.replies: list[Reply] = []
        """Replies to send next."""
        self.effects: list[Reset | CallModel | Step] = []
        """Effects to open next."""
        self.calls: list[tuple[CallModel, _OpenRequest, int]] = []
        """The open calls, each with its request and the index of its choice."""
        self.actions: deque[_OpenRequest] = deque()
        """Steps for the task's environment, executed one after another; the first is open."""
        self.main_over = not task.environment
        self.turns = self.sampled = self.effects_made = 0
        self.fault: WishFailed | None = None
        """The failure in the last reply to a call or step, if it is the system's fault."""
        self.result = ""
        self.shown: dict[str, Any] = json.loads(task.environment_config or "{}")
        self.box = where(task.config, task.environment, self.shown)

    def run(self) -> Agent:
        """Run the rollout. Raises ProgramFailed if the process cannot go on."""
        seen = yield from self._begin()
        while not seen.done:
            self._read_requests(seen.text)
            seen = yield from self._serve()
        yield from self._await_main()
        self._check_end(json.loads(seen.info or "{}"))
        word = self.shown.get("finish_word", FINISH_WORD)
        if self.box == "task" and word and not self.main_over:
            yield Step(f"echo {word}", MAIN)  # lets its environment collect the result
        self._check_fault()
        yield Finish(self.result)

    def _begin(self) -> Generator[Any, Any, EnvironmentAnswer]:
        task, config = self.task, self.task.config
        shown = ""
        if task.environment:
            opened: EnvironmentAnswer = yield Reset(MAIN, None, self._main_config())
            shown, self.main_over = opened.text, opened.done
        fields = {
            "prompt": task.prompt or shown,
            "system": task.system,
            "observation": shown,
            "environment": task.environment,
            "limits": {"max_turns": task.max_turns, "max_tokens": task.max_tokens},
            "config": config,
        }
        policies = [task.policy_id, *config.get("policies", ())]
        box = {"box": self.box} if self.box != "none" else {}  # unknown to older workers
        given = json.dumps({"agent": config["agent"], "policies": policies, "task": fields, **box})
        try:
            seen: EnvironmentAnswer = yield Reset(AGENT, "hosted", given, task.rng.getrandbits(31))
        except WishFailed as failed:
            raise _lost(failed) from failed
        return seen

    def _main_config(self) -> str | None:
        """Return the environment's configuration; if the agent lives in its box, with the agent's
        own.

        That box must not be rebuilt: the agent's changes in it are no steps of its environment.
        """
        if self.box != "task":
            return None
        return json.dumps({**self.shown, "agent": self.task.config, "replay": False})

    def _read_requests(self, text: str) -> None:
        for request in requests_of(text, self.known.by_name()):
            self.known.add(request)
            if request.kind == "model":
                self._call(request)
            elif request.kind == "step":
                self._act(request)
            else:
                self._finish(request)

    def _finish(self, request: AgentRequest) -> None:
        if len(request.text) > RESULT_CHARS:
            msg = f"a result may have {RESULT_CHARS:,} characters, found {len(request.text):,}"
            self.replies.append(ErrorReply(request.d, 400, FailureCode.RESULT_TOO_LARGE, msg))
            return
        self.result = request.text
        self.replies.append(StepReply(request.d, ""))

    def _call(self, request: AgentRequest) -> None:
        if not request.messages:
            msg = "there is no message to answer"
            self.replies.append(ErrorReply(request.d, 400, "no_messages", msg))
            return
        code = self._spent(request)
        if code:
            self._refuse(request, code)
            return
        asked = _OpenRequest(request)
        self.waiting.append(asked)
        sampling, self.turns = self._sampling(request), self.turns + request.n
        for number in range(request.n):
            tools = None if request.tool_choice == "none" else request.tools
            policy, with_tokens = request.policy or None, request.logprobs or request.token_ids
            call = CallModel(request.messages, policy, sampling, tools, with_tokens=with_tokens)
            self.effects.append(call)
            self.calls.append((call, asked, number))

    def _spent(self, request: AgentRequest) -> str:
        """Return the code of the limit that this request would exceed; empty for none."""
        task = self.task
        if self.turns + request.n > task.max_turns:
            return FailureCode.TURN_LIMIT
        if task.max_tokens and self.sampled >= task.max_tokens:
            return FailureCode.TOKEN_LIMIT
        effects = self.effects_made + len(self.effects) + len(self.actions) + request.n + RESERVE
        over = task.max_wishes and effects > task.max_wishes
        return FailureCode.POSITION_LIMIT if over else ""

    def _act(self, request: AgentRequest) -> None:
        if self.main_over:
            over = FailureCode.EPISODE_OVER if self.task.environment else "no_environment"
            self._refuse(request, over)
            return
        if code := self._spent(replace(request, n=1)) if self.turns < self.task.max_turns else "":
            self._refuse(request, code)
            return
        self.actions.append(_OpenRequest(request))
        self.waiting.append(self.actions[-1])
        if len(self.actions) == 1:
            self.effects.append(Step(request.text, MAIN))

    def _refuse(self, request: AgentRequest, code: str) -> None:
        self.replies.append(ErrorReply(request.d, 404, code, f"this rollout is over: {code}"))

    def _sampling(self, request: AgentRequest) -> Sampling | None:
        """Return the request's sampling, with the agent's stops and its
        smaller number of tokens."""
        given = self.task.sampling
        most = given.max_tokens if request.max_tokens is None else request.max_tokens
        stop = (*given.stop, *(each for each in request.stop if each not in given.stop))
        if most >= given.max_tokens and stop == given.stop:
            return None
        return replace(given, max_tokens=min(most, given.max_tokens), stop=stop)

    def _serve(self) -> Generator[Any, Any, EnvironmentAnswer]:
        """Carry out effects until the process has been heard again."""
        running = False
        while True:
            if not running and (self.replies or not self.waiting):
                self.effects.append(Step(self._action(), AGENT))
                running = True
            opened, self.effects = self.effects, []
            self.effects_made += len(opened)
            done: Completed = yield AsCompleted(opened)
            if isinstance(done.wish, CallModel):
                self._record_outcome(done.wish, done.outcome)
            elif done.wish.session == MAIN:
                self._record_step(done.outcome)
            elif isinstance(done.outcome, WishFailed):
                raise _lost(done.outcome)
            elif isinstance(done.outcome, EnvironmentAnswer):
                return done.outcome

    def _await_main(self) -> Generator[Any, Any, None]:
        """Wait for the open step if the process ended in its task's box:
        the step may have ended it."""
        while self.box == "task" and self.actions:
            while len(self.actions) > 1:  # not begun
                self.waiting.remove(self.actions.pop())
            done: Completed = yield AsCompleted([])
            if isinstance(done.wish, CallModel):
                self._record_outcome(done.wish, done.outcome)
            else:
                self._record_step(done.outcome)

    def _action(self) -> str:
        replies, self.replies = self.replies, []
        action = AgentAction(tuple(replies), tuple(asked.request.d for asked in self.waiting))
        self.known.apply(action)
        return action.text()

    def _record_outcome(self, call: CallModel, outcome: Any) -> None:
        """Take the outcome of one choice; the last of them completes the request's reply."""
        entry = next(entry for entry in self.calls if entry[0] is call)
        self.calls.remove(entry)
        _, asked, number = entry
        asked.outcomes[number] = outcome
        self.sampled += getattr(outcome, "sampled_tokens", 0)
        if len(asked.outcomes) == asked.request.n:
            self.waiting.remove(asked)
            outcomes = [asked.outcomes[number] for number in range(asked.request.n)]
            self._answer(reply_of(asked.request, outcomes), system_fault_in(outcomes))

    def _answer(self, reply: Reply, fault: WishFailed | None) -> None:
        self.fault = fault
        self.replies.append(reply)

    def _record_step(self, outcome: Any) -> None:
        asked = self.actions.popleft()
        self.waiting.remove(asked)
        name = asked.request.d
        if isinstance(outcome, WishFailed):
            self._answer(failed_reply(name, outcome, FINAL), outcome)
        else:
            self.main_over = outcome.done
            seen = outcome.reward, outcome.terminated, outcome.truncated, outcome.info
            self._answer(StepReply(name, outcome.text, *seen), None)
        others, self.actions = self.actions, deque()
        for other in others:
            self.waiting.remove(other)
            self._act(other.request)

    def _check_end(self, info: dict[str, Any]) -> None:
        """Raise ProgramFailed if the process has not ended well."""
        code, words = info.get("exit_code"), info.get("last_words", "")
        spent = self.main_over or info.get(STARVED)  # its box ended, or had no memory left
        if code != 0 and not (self.box == "task" and spent and code is None):
            self._check_fault()
            how = f"with code {code}" if code is not None else f"by signal {info.get('signal')}"
            msg = f"agent {self.task.config['agent']!r} ended {how}; its last words: {words}"
            raise ProgramFailed(FailureCode.AGENT_EXIT, msg)

    def _check_fault(self) -> None:
        """Raise ProgramFailed if a fault stopped the agent, unless its environment has ended."""
        taken = bool(self.task.environment) and self.main_over
        if self.fault and not taken:
            raise ProgramFailed(self.fault.code, self.fault.message)


def _lost(failed: WishFailed) -> ProgramFailed:
    """Return the failure of a rollout whose process cannot be reached any more."""
    code = FailureCode.AGENT_DEADLINE if failed.code == FailureCode.DEADLINE else failed.code
    return ProgramFailed(code, failed.message)
