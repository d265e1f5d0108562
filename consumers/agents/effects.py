"""The effects that an agent program asks for (its effects), and their answers.

A program is a plain generator: it yields an effect, or a list of effects to be carried out
concurrently, and is sent the answers. Wishes yielded as `AsCompleted` stay open beside others, and
it is sent one outcome at a time. A program does no IO, reads no clock and draws no randomness of
its own (`Task.rng` is seeded), so running it again with recorded answers repeats its effects
exactly.
"""

import json
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rollcall.schemas.message_code import maker
from rollcall.schemas.messages import Message, Sampling

if TYPE_CHECKING:
    from random import Random

make_message = maker(Message)


@dataclass(frozen=True, slots=True)
class Reset:
    """Open an environment; the answer is an EnvironmentAnswer. None means the task's value."""

    session: str = "main"
    environment: str | None = None
    environment_config: str | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Begun:
    """The known tokens of the first messages of a conversation.

    They were prompt tokens, unless `mask` marks some as sampled: by the same policy, in a rollout
    that this one continues.
    """

    messages: int
    """The number of messages that they encode, fewer than the call has."""
    ids: bytes
    """int32 little-endian, not empty."""
    mask: bytes = b""
    """Like the next two: as long as the ids, packed as in a Sequence; or all three are empty."""
    logprobs: bytes = b""
    versions: bytes = b""
    samplings: tuple[Sampling, ...] = ()
    """The sampling parameters of the sampled tokens."""


@dataclass(frozen=True, slots=True)
class CallModel:
    """Continue the conversation; the answer is a ModelAnswer. None means the request's value.

    The messages are the whole conversation so far. If it extends one that the rollout already has,
    only the new messages are rendered. Otherwise a new token sequence begins: with the tokens of
    `begun` if they are given, and then only the messages after those are rendered.
    """

    messages: Sequence[Message]
    policy_id: str | None = None
    sampling: Sampling | None = None
    """With `max_tokens` 0 nothing is sampled and no conversation is
    extended: it only counts tokens."""
    tools: str | None = None
    """JSON list of tool definitions, which are part of the beginning of a conversation: one that
    began with others is not extended. None: any definitions match, and no tool calls are parsed."""
    begun: Begun | None = None
    with_tokens: bool = False
    """True if the answer is to include the tokens, which most programs do not use."""


@dataclass(frozen=True, slots=True)
class Step:
    """Apply an action to an open environment; the answer is an EnvironmentAnswer."""

    action: str
    session: str = "main"


@dataclass(frozen=True, slots=True)
class Recalled:
    """A finished conversation that is known, and that no call extends."""

    policy_id: str | None
    """None means the request's policy."""
    messages: Sequence[Message]
    begun: Begun
    """The tokens of all its messages."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of the program; it has no answer."""

    result: str = ""
    recalled: Sequence[Recalled] = ()
    """Conversations that belong to the rollout besides those of its calls."""


Effect = Reset | CallModel | Step | Finish
# As a tuple: `isinstance` with A | B makes the union anew each time.
EFFECTS = (Reset, CallModel, Step)
"""The effects that have an answer."""


@dataclass(frozen=True, slots=True)
class AsCompleted:
    """Effects to open beside those that are open; the answer is the next `Completed` in log order.

    It may be that of any effect opened this way, now or before; each is given once. With no
    effects it only waits. Outcomes that come while something else is waited for are kept. At most
    one `Reset` or `Step` of a session may be open.
    """

    wishes: Sequence[Reset | CallModel | Step] = ()


Agent = Generator[Effect | Sequence[Effect] | AsCompleted, Any, None]


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """The answer of the policy."""

    message: Message
    finish_reason: str
    command_id: bytes = b""
    """The 16-byte id of the answered command; empty if a fork answers from its record."""
    at_ms: int = 0
    """The append time of the answer, in ms since the epoch."""
    prompt_tokens: int = 0
    """The number of tokens that the answer was sampled after."""
    sampled_tokens: int = 0
    prompt_ids: bytes = b""
    """Packed, like `token_ids` and `logprobs`; set only if they were asked for."""
    token_ids: bytes = b""
    logprobs: bytes = b""
    stopped_by: str = ""
    """The stop string that ended it, which is not in its text; empty if none did."""

    @property
    def text(self) -> str:
        return self.message.content


@dataclass(frozen=True, slots=True)
class EnvironmentAnswer:
    """The observation after a reset or an action; `info` is JSON."""

    text: str
    reward: float
    terminated: bool
    truncated: bool
    info: str

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


class WishFailed(Exception):
    """Raised at the yield of a single effect that failed after all its tries.

    In the answer to a list, and in `Completed`, it takes the failed effect's place and is not
    raised.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Completed:
    """The outcome of one of the effects that are open concurrently."""

    wish: Reset | CallModel | Step
    """The same object that was yielded."""
    outcome: ModelAnswer | EnvironmentAnswer | WishFailed


@dataclass(frozen=True, slots=True)
class Task:
    """The input of a program."""

    prompt: str
    system: str
    environment: str
    max_turns: int
    agent_config: str
    drawn: Callable[[], "Random"]
    max_tokens: int = 0
    """The most tokens that may be sampled; 0 is no limit."""
    sampling: Sampling = field(default_factory=Sampling)
    """The request's sampling parameters."""
    policy_id: str = ""
    """The request's policy."""
    max_wishes: int = 0
    """The most effects that may be made; 0 is no limit."""
    environment_config: str = ""
    """The task's configuration, as JSON."""

    @property
    def rng(self) -> "Random":
        """A generator seeded by rollout and attempt; made on first use, as it takes 2.5 kB."""
        return self.drawn()

    @property
    def config(self) -> dict[str, Any]:
        """The request's `agent_config`, parsed; empty for none."""
        return dict(json.loads(self.agent_config or "{}"))


Program = Callable[[Task], Agent]


def system(task: Task) -> list[Message]:
    """Return the messages that every conversation about the task begins with."""
    return [make_message("system", task.system)] if task.system else []


def user(text: str) -> Message:
    """Return a message from the environment or a person."""
    return make_message("user", text)
