"""The agent program `fork`: another rollout's program, its first turns from the record, then live.

A generator that drives a generator. Where the parent's model answered, its answer is given again
and nobody is asked; where the parent's environment showed something, the same wish is made again,
live, and what it shows must be what was recorded: so an environment is rebuilt by stepping it. From
the first position on of which nothing is recorded, every wish is the parent's program's own. The
first live call of a conversation carries the recorded tokens as they are (`Begun`): they are read,
not sampled, so nothing of the parent is trained on under the fork. A continuation goes on with a
rollout that was cancelled: its tokens come along as they were sampled, with their log-probabilities
and versions, and what its parent has used of the limits is used.

All of it is in the request's `agent_config`: the fork's own journal tells its whole story.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from consumers.agents.wishes import (
    WISHES,
    Agent,
    AsCompleted,
    Begun,
    CallModel,
    Completed,
    EnvironmentAnswer,
    Finish,
    ModelAnswer,
    Program,
    Recalled,
    Reset,
    Step,
    Task,
    WishFailed,
)
from schemas.errors import ProgramFailed
from schemas.messages import Message, RolloutRequest, Sampling

if TYPE_CHECKING:
    from random import Random


@dataclass(frozen=True, slots=True)
class Said:
    """What the parent's model answered at a position."""

    position: int
    sequence: int
    text: str
    tool_calls: str
    finish_reason: str
    added_ids: bytes
    token_ids: bytes
    stopped_by: str = ""
    logprobs: bytes = b""
    """As `versions`, of the sampled tokens: only in a continuation."""
    versions: bytes = b""


@dataclass(frozen=True, slots=True)
class Saw:
    """What the parent's environment showed at a position."""

    position: int
    text: str
    reward: float
    terminated: bool
    truncated: bool


@dataclass(frozen=True, slots=True)
class Missed:
    """A wish of the parent's that failed after all its tries."""

    position: int
    code: str
    message: str


Recorded = Said | Saw | Missed
PACKED = ("added_ids", "token_ids", "logprobs", "versions")
LATER = ("stopped_by", "logprobs", "versions")
"""What older readers do not know, and is left out where it is empty."""
KINDS: Mapping[str, Callable[..., Recorded]] = {"said": Said, "saw": Saw, "missed": Missed}


@dataclass(frozen=True, slots=True)
class Past:
    """What a fork knows of its parent."""

    program: str
    agent_config: str
    rng_seed: int
    """Of the parent's program, so that it draws again what it drew then."""
    turn: int
    """So many model answers are recorded."""
    recorded: tuple[Recorded, ...]
    """By position, all below the first that is live."""
    order: tuple[int, ...] = ()
    """Their positions as they came in the log, where that is another order."""
    continues: bool = False
    """Whether it is the same rollout that goes on, within the limits of its request."""

    def config(self) -> str:
        """As the request's `agent_config`."""
        recorded = [{"kind": type(each).__name__.lower(), **_plain(each)} for each in self.recorded]
        config = asdict(self) | {"recorded": recorded}
        for key in ("order", "continues"):
            if not config[key]:  # which older readers do not know
                del config[key]
        return json.dumps(config, separators=(",", ":"))

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Past":
        """Raises KeyError, TypeError or ValueError for a config that is none."""
        recorded = []
        for each in config["recorded"]:
            fields = {
                key: b64decode(value) if key in PACKED else value
                for key, value in each.items()
                if key != "kind"
            }
            recorded.append(KINDS[each["kind"]](**fields))
        order = tuple(config.get("order", ()))
        return cls(**{**config, "recorded": tuple(recorded), "order": order})

    @classmethod
    def read(cls, config: object) -> "Past | None":
        """What the text of a request's `agent_config` says; None where it is no fork's."""
        if not isinstance(config, str):
            return None
        try:
            return cls.of(json.loads(config))
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            return None


def recorded_answers(request: RolloutRequest | None) -> int:
    """How many answers a rollout holds as sampled that its journal did not count."""
    if request is None or request.agent != "fork":
        return 0
    past, count = Past.read(request.agent_config), 0
    while past is not None:
        count += sum(isinstance(each, Said) and bool(each.logprobs) for each in past.recorded)
        past = Past.read(past.agent_config) if past.program == "fork" else None
    return count


def _plain(recorded: Recorded) -> dict[str, Any]:
    values = asdict(recorded)
    for key in LATER:
        if not values.get(key):
            values.pop(key, None)
    return {
        key: b64encode(value).decode() if isinstance(value, bytes) else value
        for key, value in values.items()
    }


def forking(program_of: Callable[[str], Program]) -> Program:
    """The program `fork`, which finds its parent's program by name."""

    def fork(task: Task) -> Agent:
        """Live again what is recorded, then go on."""
        past = Past.of(task.config)
        own = cache(partial(_seeded, task, past.rng_seed))
        given = replace(task, agent_config=past.agent_config, drawn=own)
        replay = Replay(past, task)
        with closing(program_of(past.program)(given)) as agent:
            go_on: Callable[[], Any] = partial(next, agent)
            while True:
                try:
                    wished = go_on()
                except StopIteration:
                    wished = Finish()
                if isinstance(wished, Finish):
                    yield replace(wished, recalled=(*wished.recalled, *replay.recalled()))
                    return
                answer = yield from replay.answer(wished)
                single = not isinstance(wished, list | tuple)
                failed = single and isinstance(answer, WishFailed)
                go_on = partial(agent.throw if failed else agent.send, answer)

    return fork


def _seeded(task: Task, seed: int) -> "Random":
    task.rng.seed(seed)
    return task.rng


@dataclass(slots=True)
class _ParentSequence:
    """One of the parent's token sequences, as far as it is recorded."""

    policy_id: str | None
    messages: list[Message]
    tokens: Begun
    """All of them; how many messages they are is not looked at."""
    tools: str | None
    """Those that its policy was told of where it began."""

    def take(self, said: Said, sampling: Sampling) -> None:
        """Extend it by what an answer has added, sampled as it was where that is recorded."""
        self.tokens = _extended(self.tokens, said.added_ids)
        if said.logprobs:
            self.tokens = _extended(self.tokens, said.token_ids, said)
            self.tokens = replace(self.tokens, samplings=(*self.tokens.samplings, sampling))
        else:
            self.tokens = _extended(self.tokens, said.token_ids)

    def begun(self, messages: int) -> Begun:
        """What a call begins with that goes on after so many messages."""
        if 1 in self.tokens.mask:
            return replace(self.tokens, messages=messages)
        return Begun(messages, self.tokens.ids)


def _extended(tokens: Begun, ids: bytes, said: Said | None = None) -> Begun:
    count = len(ids) // 4
    mask, logprobs, versions = bytes(count), bytes(4 * count), b"\xff" * (4 * count)
    if said is not None:
        mask, logprobs, versions = b"\1" * count, said.logprobs, said.versions
    return replace(
        tokens,
        ids=tokens.ids + ids,
        mask=tokens.mask + mask,
        logprobs=tokens.logprobs + logprobs,
        versions=tokens.versions + versions,
    )


def _whole(begun: Begun | None) -> Begun:
    """What a conversation began with, its mask and the rest written out."""
    if begun is None:
        return Begun(0, b"")
    return begun if begun.mask else _extended(Begun(0, b""), begun.ids)


class Completions:
    """What the parent's program is told of as it completes: the recorded first, in their order."""

    def __init__(self, order: Sequence[int]) -> None:
        self._places = {position: place for place, position in enumerate(order)}
        self._live: list[tuple[int, Any, object]] = []
        """Position, the parent's wish, and the fork's in its place."""
        self._told: dict[int, Completed] = {}
        self._unopened: list[Any] = []

    def open(self, position: int, wish: Any, live: object) -> None:
        """A wish is to be made live, when something is waited for next."""
        self._live.append((position, wish, live))
        self._unopened.append(live)

    def unopened(self) -> list[Any]:
        """What is still to be made live; it is, now."""
        opened, self._unopened = self._unopened, []
        return opened

    def close(self, done: Completed) -> tuple[int, Completed]:
        """One of them is answered: where its program wished for it, and what it is told."""
        found = next(each for each in self._live if each[2] is done.wish)
        self._live.remove(found)
        return found[0], Completed(found[1], done.outcome)

    def tell(self, position: int, completed: Completed) -> None:
        """It may be told when its turn comes."""
        self._told[position] = completed

    def next(self) -> Completed | None:
        """What the program is told now; None while that is still waited for."""
        waiting = [position for position, *_ in self._live if position in self._places]
        last = len(self._places)
        position = min(self._told, key=lambda each: self._places.get(each, last), default=None)
        if position is None:
            return None
        place = self._places.get(position, last)
        if any(self._places[each] < place for each in waiting):
            return None
        return self._told.pop(position)


@dataclass(slots=True)
class Replay:
    """Answers the parent's program: from the record, or by asking for it live."""

    past: Past
    task: Task
    recorded: dict[int, Recorded] = field(init=False)
    position: int = 0
    """The parent's own, for what is answered from the record takes none of the fork's."""
    conversations: dict[int, _ParentSequence] = field(default_factory=dict)
    completions: Completions = field(init=False)
    calls: int = 0
    """All of the parent's program, recorded and live; so are the tokens."""
    sampled: int = 0

    def __post_init__(self) -> None:
        self.recorded = {each.position: each for each in self.past.recorded}
        self.completions = Completions(self.past.order or tuple(self.recorded))

    def answer(self, wished: Any) -> Generator[Any, Any, Any]:
        """What comes of a wish or a list of them; WishFailed is returned, never raised."""
        if isinstance(wished, AsCompleted):
            return (yield from self._next_of(wished))
        single = not isinstance(wished, list | tuple)
        wishes = [wished] if single else wished
        if not wishes or not all(isinstance(wish, WISHES) for wish in wishes):
            return (yield wished)  # rubbish, which the fold refuses
        first, self.position = self.position, self.position + len(wishes)
        asked = dict(enumerate(wishes, first))
        answers = {
            position: self._said(position, wish)
            for position, wish in asked.items()
            if isinstance(wish, CallModel) and position in self.recorded
        }
        live = {position: self._live(w) for position, w in asked.items() if position not in answers}
        if live:
            found = yield from _ask(list(live.values()), single=single)
            answers |= zip(live, found, strict=True)
        for position in live:
            self._compare(position, asked[position], answers[position])
        together = [answers[position] for position in asked]
        return together[0] if single else together

    def _next_of(self, wished: AsCompleted) -> Generator[Any, Any, Completed]:
        """The next outcome of those that are open: in the order of the record, then as they come.

        What is recorded of a call is told as soon as all that came before it then has come again.
        """
        first = self.position
        self.position += len(wished.wishes)
        for position, wish in enumerate(wished.wishes, first):
            if isinstance(wish, CallModel) and position in self.recorded:
                self.completions.tell(position, Completed(wish, self._said(position, wish)))
            else:
                self.completions.open(position, wish, self._live(wish))
        while (told := self.completions.next()) is None:
            done: Completed = yield AsCompleted(self.completions.unopened())
            position, own = self.completions.close(done)
            self._compare(position, own.wish, own.outcome)
            self.completions.tell(position, own)
        return told

    def _said(self, position: int, wish: CallModel) -> ModelAnswer | WishFailed:
        """The recorded outcome of a call."""
        recorded = self.recorded[position]
        if isinstance(recorded, Missed):
            return WishFailed(recorded.code, recorded.message)
        if isinstance(recorded, Saw):
            raise _diverged(position, "its program calls the model where it stepped then")
        message = Message("assistant", recorded.text, recorded.tool_calls)
        if wish.sampling and not wish.sampling.max_tokens:  # it extended no conversation
            return ModelAnswer(message, recorded.finish_reason, stopped_by=recorded.stopped_by)
        known = self.conversations.setdefault(
            recorded.sequence,
            _ParentSequence(wish.policy_id, [], _whole(wish.begun), _told_first(wish)),
        )
        if list(wish.messages[: len(known.messages)]) != known.messages:
            raise _diverged(position, "its program tells another conversation than then")
        known.messages = [*wish.messages, message]
        known.take(recorded, wish.sampling or self.task.sampling)
        self.calls, self.sampled = self.calls + 1, self.sampled + len(recorded.token_ids) // 4
        told = len(recorded.token_ids) // 4 if self.past.continues else 0
        return ModelAnswer(
            message, recorded.finish_reason, sampled_tokens=told, stopped_by=recorded.stopped_by
        )

    def _live(self, wish: Reset | CallModel | Step) -> Reset | CallModel | Step:
        """The wish as it is made; a call that extends a recorded conversation brings its tokens."""
        if not isinstance(wish, CallModel):
            return wish
        if self.past.continues:
            wish = self._within_limits(wish)
        fitting = [
            (len(known.messages), sequence)
            for sequence, known in self.conversations.items()
            if known.policy_id == wish.policy_id and _extends(wish, known)
        ]
        length, sequence = max(fitting, default=(0, -1))
        if not fitting or (wish.begun and wish.begun.messages >= length):
            return wish
        # From here on the rollout has this conversation itself.
        return replace(wish, begun=self.conversations.pop(sequence).begun(length))

    def _within_limits(self, wish: CallModel) -> CallModel:
        """The call as its rollout may make it, had it not been cancelled; raises ProgramFailed."""
        self.calls += 1
        task, how = self.task, wish.sampling or self.task.sampling
        if self.calls > task.max_turns:
            msg = f"the program asked for more than {task.max_turns} model calls"
            raise ProgramFailed("turn_limit", msg)
        if not task.max_tokens or not how.max_tokens:
            return wish
        left = task.max_tokens - self.sampled
        if left <= 0:
            msg = f"the attempt has sampled all its {task.max_tokens} tokens"
            raise ProgramFailed("token_limit", msg)
        return replace(wish, sampling=replace(how, max_tokens=min(left, how.max_tokens)))

    def recalled(self) -> list[Recalled]:
        """Recorded conversations of a continuation that no live call has gone on with."""
        return [
            Recalled(known.policy_id, known.messages, known.begun(len(known.messages)))
            for known in self.conversations.values()
            if 1 in known.tokens.mask
        ]

    def _compare(self, position: int, wish: object, answer: object) -> None:
        """Raise ProgramFailed where the past shows itself otherwise than it was."""
        recorded = self.recorded.get(position)
        if isinstance(answer, ModelAnswer):
            self.sampled += answer.sampled_tokens
        if recorded is None or isinstance(wish, CallModel):
            return
        if isinstance(recorded, Said):
            raise _diverged(position, "its program steps where it called the model then")
        now: object = answer
        if isinstance(answer, EnvironmentAnswer):
            now = Saw(position, answer.text, answer.reward, answer.terminated, answer.truncated)
        if isinstance(answer, WishFailed) and isinstance(recorded, Missed):
            now = replace(recorded, code=answer.code)
        if now != recorded:
            raise _diverged(position, f"the environment shows {_told(now)}, then {_told(recorded)}")


def _ask(wishes: list[Any], *, single: bool) -> Generator[Any, Any, Any]:
    """The outcomes of wishes made live, as a list."""
    if not single:
        return (yield wishes)
    try:
        return [(yield wishes[0])]
    except WishFailed as failed:
        return [failed]


def _extends(wish: CallModel, known: _ParentSequence) -> bool:
    """Whether a call would go on from there, as the fold has it."""
    count = len(known.messages)
    told = wish.tools is None or known.tools is None or wish.tools == known.tools
    return told and len(wish.messages) > count and list(wish.messages[:count]) == known.messages


def _told_first(wish: CallModel) -> str | None:
    """Of which tools a policy is told by the first call of a conversation."""
    return wish.tools if wish.begun else wish.tools or ""


def _told(outcome: object) -> str:
    if isinstance(outcome, Saw):
        ends = " and ends" if outcome.terminated or outcome.truncated else ""
        return f"{outcome.text!r:.200} for {outcome.reward:+g}{ends}"
    return f"a failure ({getattr(outcome, 'code', outcome)})"


def _diverged(position: int, what: str) -> ProgramFailed:
    msg = f"the past cannot be lived again: at position {position} of its parent {what}"
    return ProgramFailed("fork_diverged", msg)
