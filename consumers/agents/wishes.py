"""What an agent program may wish, and what comes back.

A program is a plain generator: it yields a wish, or a list of wishes to be carried out side by
side, and is sent what came of it. What it yields as `AsCompleted` stays open beside all else, and
it is sent one outcome at a time. It does no IO, reads no clock and draws no randomness of its own
(`Task.rng` is seeded), so running it again against recorded answers repeats its wishes exactly.
"""

import json
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from schemas.message_code import maker
from schemas.messages import Message, Sampling

if TYPE_CHECKING:
    from random import Random

make_message = maker(Message)


@dataclass(frozen=True, slots=True)
class Reset:
    """Open an environment; the answer is an EnvironmentAnswer. What is None is the task's."""

    session: str = "main"
    environment: str | None = None
    environment_config: str | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Begun:
    """Tokens that the first messages of a conversation are known to be.

    They were read, unless `mask` says that some were sampled: by the same policy, in a rollout that
    this one goes on with.
    """

    messages: int
    """So many, fewer than the call has."""
    ids: bytes
    """int32 little-endian, not empty."""
    mask: bytes = b""
    """As the next two as long as the ids and packed as in a Sequence, or all of them empty."""
    logprobs: bytes = b""
    versions: bytes = b""
    samplings: tuple[Sampling, ...] = ()
    """How what was sampled was asked for."""


@dataclass(frozen=True, slots=True)
class CallModel:
    """Continue the conversation; the answer is a ModelAnswer. What is None is the request's.

    The messages are the whole conversation so far. Where it extends one that the rollout already
    has, only the new ones are rendered; otherwise a new token sequence begins: with the tokens of
    `begun` where they are given, and then only the messages after those are rendered.
    """

    messages: Sequence[Message]
    policy_id: str | None = None
    sampling: Sampling | None = None
    """With `max_tokens` 0 nothing is sampled and no conversation extended: it only counts."""
    tools: str | None = None
    """JSON list of definitions, of which a policy is told where a conversation begins: one that
    began with others is not gone on with. None: whichever it began with, and no calls are read."""
    begun: Begun | None = None
    with_tokens: bool = False
    """Whether its answer brings the tokens too, which programs as a rule do not look at."""


@dataclass(frozen=True, slots=True)
class Step:
    """Apply an action to an open environment; the answer is an EnvironmentAnswer."""

    action: str
    session: str = "main"


@dataclass(frozen=True, slots=True)
class Recalled:
    """A conversation that is known to have been held, and that no call goes on with."""

    policy_id: str | None
    """None: the request's."""
    messages: Sequence[Message]
    begun: Begun
    """Of all its messages."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The end; nothing comes back."""

    result: str = ""
    recalled: Sequence[Recalled] = ()
    """Belong to the rollout beside those of its calls."""


Wish = Reset | CallModel | Step | Finish
# As a tuple: `isinstance` with A | B makes the union anew each time.
WISHES = (Reset, CallModel, Step)
"""Those that are answered."""


@dataclass(frozen=True, slots=True)
class AsCompleted:
    """Open wishes beside those that are open; the answer is the next `Completed` in log order.

    It may be of any wish that was opened so, now or before, and every one is told once. With no
    wishes it only waits. Outcomes that come while something else is waited for are kept. At most
    one `Reset` or `Step` of a session may be open.
    """

    wishes: Sequence[Reset | CallModel | Step] = ()


Agent = Generator[Wish | Sequence[Wish] | AsCompleted, Any, None]


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """What the policy said."""

    message: Message
    finish_reason: str
    command_id: bytes = b""
    """16 bytes that name the answered command; empty where a fork answers from its past."""
    at_ms: int = 0
    """When it reached the log, since the epoch."""
    prompt_tokens: int = 0
    """All that the answer was sampled after."""
    sampled_tokens: int = 0
    prompt_ids: bytes = b""
    """As `logprobs` and `token_ids`: packed, and only where they were wished for."""
    token_ids: bytes = b""
    logprobs: bytes = b""
    stopped_by: str = ""
    """The stop string that ended it, which is not in its text; empty where none did."""

    @property
    def text(self) -> str:
        return self.message.content


@dataclass(frozen=True, slots=True)
class EnvironmentAnswer:
    """What an environment showed after its opening, or after an action; `info` is JSON."""

    text: str
    reward: float
    terminated: bool
    truncated: bool
    info: str

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


class WishFailed(Exception):
    """Raised at the yield of a single wish that failed after all its tries.

    In the answer to a list, and in `Completed`, it stands in the failed wish's place, not raised.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Completed:
    """What came of one of the wishes that are open side by side."""

    wish: Reset | CallModel | Step
    """The very object that was yielded."""
    outcome: ModelAnswer | EnvironmentAnswer | WishFailed


@dataclass(frozen=True, slots=True)
class Task:
    """What a program is given."""

    prompt: str
    system: str
    environment: str
    max_turns: int
    agent_config: str
    drawn: Callable[[], "Random"]
    max_tokens: int = 0
    """All that may be sampled; 0 is no limit."""
    sampling: Sampling = field(default_factory=Sampling)
    """The request's."""
    policy_id: str = ""
    """The request's."""
    max_wishes: int = 0
    """All that may be wished for; 0 is no limit."""
    environment_config: str = ""
    """The task's, as JSON."""

    @property
    def rng(self) -> "Random":
        """Seeded by rollout and attempt; made when first asked for, as it takes 2.5 kB."""
        return self.drawn()

    @property
    def config(self) -> dict[str, Any]:
        """The request's `agent_config`; empty for none."""
        return dict(json.loads(self.agent_config or "{}"))


Program = Callable[[Task], Agent]


def system(task: Task) -> list[Message]:
    """The messages that every conversation about the task begins with."""
    return [make_message("system", task.system)] if task.system else []


def user(text: str) -> Message:
    """A message from the environment or a person."""
    return make_message("user", text)
