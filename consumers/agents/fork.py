"""The agent program `fork`: replays the first turns of another rollout, then goes on live.

It is a generator that drives the parent's program. A recorded model answer is given again and no
model is called. A step of the environment is made again, live, and its observation must equal the
recorded one: so the environment's state is rebuilt. From the first position without a record, every
effect of the parent's program is made live. The first live call of a conversation carries the
recorded tokens (`Begun`) as prompt tokens, not as sampled ones, so the parent's samples are not
trained on under the fork. A continuation goes on with a rollout that was cancelled: its tokens are
carried along as sampled, with their log-probabilities and versions, and its parent's use counts
towards its limits.

All of it is in the request's `agent_config`: the fork's own journal is self-contained.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from rollcall.consumers.agents.effects import (
    EFFECTS,
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
from rollcall.schemas.errors import FailureCode, ProgramFailed
from rollcall.schemas.messages import Message, RolloutRequest, Sampling

if TYPE_CHECKING:
    from random import Random


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """The answer of the parent's model at a position."""

    position: int
    sequence: int
    text: str
    tool_calls: str
    finish_reason: str
    added_ids: bytes
    token_ids: bytes
    stopped_by: str = ""
    logprobs: bytes = b""
    """Like `versions`, for the sampled tokens: only in a continuation."""
    versions: bytes = b""


@dataclass(frozen=True, slots=True)
class RecordedObservation:
    """The observation of the parent's environment at a position."""

    position: int
    text: str
    reward: float
    terminated: bool
    truncated: bool


@dataclass(frozen=True, slots=True)
class RecordedFailure:
    """An effect of the parent that failed after all its tries."""

    position: int
    code: str
    message: str


Recorded = RecordedAnswer | RecordedObservation | RecordedFailure
PACKED = ("added_ids", "token_ids", "logprobs", "versions")
LATER = ("stopped_by", "logprobs", "versions")
"""Fields that older readers do not know; left out if empty."""
KIND_OF: Mapping[type[Recorded], str] = {
    RecordedAnswer: "said",
    RecordedObservation: "saw",
    RecordedFailure: "missed",
}
"""The `kind` of a record in `agent_config`, which is part of recorded requests."""
KINDS: Mapping[str, Callable[..., Recorded]] = {kind: record for record, kind in KIND_OF.items()}


@dataclass(frozen=True, slots=True)
class Past:
    """The recorded part of a fork's parent."""

    program: str
    agent_config: str
    rng_seed: int
    """The seed of the parent's program, so that it draws the same random numbers."""
    turn: int
    """The number of recorded model answers."""
    recorded: tuple[Recorded, ...]
    """Ordered by position, all below the first that is live."""
    order: tuple[int, ...] = ()
    """Their positions in log order, if that is a different order."""
    continues: bool = False
    """True if it continues the same rollout, within the limits of its request."""

    def config(self) -> str:
        """Serialise it as the request's `agent_config`."""
        recorded = [{"kind": KIND_OF[type(each)], **_plain(each)} for each in self.recorded]
        config = asdict(self) | {"recorded": recorded}
        for key in ("order", "continues"):
            if not config[key]:  # older readers do not know them
                del config[key]
        return json.dumps(config, separators=(",", ":"))

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Past":
        """Parse a config. Raises KeyError, TypeError or ValueError for a malformed one."""
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
        """Parse a request's `agent_config`; None if it is not that of a fork."""
        if not isinstance(config, str):
            return None
        try:
            return cls.of(json.loads(config))
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            return None


def recorded_answers(request: RolloutRequest | None) -> int:
    """Return the number of answers that a rollout holds as sampled but
    its journal did not count."""
    if request is None or request.agent != "fork":
        return 0
    past, count = Past.read(request.agent_config), 0
    while past is not None:
        count += sum(
            isinstance(each, RecordedAnswer) and bool(each.logprobs) for each in past.recorded
        )
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
    """Return the program `fork`, which finds its parent's program by name."""

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
    """All its tokens; the field `messages` is not used."""
    tools: str | None
    """The tool definitions at its beginning."""

    def add_answer(self, answer: RecordedAnswer, sampling: Sampling) -> None:
        """Extend it by the tokens of an answer, as sampled ones if that is recorded."""
        self.tokens = _extended(self.tokens, answer.added_ids)
        if answer.logprobs:
            self.tokens = _extended(self.tokens, answer.token_ids, answer)
            self.tokens = replace(self.tokens, samplings=(*self.tokens.samplings, sampling))
        else:
            self.tokens = _extended(self.tokens, answer.token_ids)

    def begun(self, messages: int) -> Begun:
        """Return the first tokens of a call that extends it after `messages` messages."""
        if 1 in self.tokens.mask:
            return replace(self.tokens, messages=messages)
        return Begun(messages, self.tokens.ids)


def _extended(tokens: Begun, ids: bytes, answer: RecordedAnswer | None = None) -> Begun:
    count = len(ids) // 4
    mask, logprobs, versions = bytes(count), bytes(4 * count), b"\xff" * (4 * count)
    if answer is not None:
        mask, logprobs, versions = b"\1" * count, answer.logprobs, answer.versions
    return replace(
        tokens,
        ids=tokens.ids + ids,
        mask=tokens.mask + mask,
        logprobs=tokens.logprobs + logprobs,
        versions=tokens.versions + versions,
    )


def _whole(begun: Begun | None) -> Begun:
    """Return the tokens that a conversation began with, with all columns filled."""
    if begun is None:
        return Begun(0, b"")
    return begun if begun.mask else _extended(Begun(0, b""), begun.ids)


class Completions:
    """The order of outcomes for the parent's program: recorded ones first, in their order."""

    def __init__(self, order: Sequence[int]) -> None:
        self._places = {position: place for place, position in enumerate(order)}
        self._live: list[tuple[int, Any, object]] = []
        """Position, the parent's effect, and the fork's effect that stands for it."""
        self._outcomes: dict[int, Completed] = {}
        self._unopened: list[Any] = []

    def open(self, position: int, effect: Any, live: object) -> None:
        """Register an effect that is made live with the next AsCompleted."""
        self._live.append((position, effect, live))
        self._unopened.append(live)

    def unopened(self) -> list[Any]:
        """Return the effects to make live now, and count them as made."""
        opened, self._unopened = self._unopened, []
        return opened

    def close(self, done: Completed) -> tuple[int, Completed]:
        """Close a live effect; return its position and the outcome of the parent's effect."""
        entry = next(each for each in self._live if each[2] is done.wish)
        self._live.remove(entry)
        position, effect, _ = entry
        return position, Completed(effect, done.outcome)

    def add_outcome(self, position: int, completed: Completed) -> None:
        """Register an outcome that may be given to the program when its turn comes."""
        self._outcomes[position] = completed

    def next(self) -> Completed | None:
        """Return the next outcome for the program; None while it has to wait."""
        waiting = [position for position, *_ in self._live if position in self._places]
        last = len(self._places)
        position = min(self._outcomes, key=lambda each: self._places.get(each, last), default=None)
        if position is None:
            return None
        place = self._places.get(position, last)
        # A recorded outcome waits for live ones that preceded it in the record.
        if any(self._places[each] < place for each in waiting):
            return None
        return self._outcomes.pop(position)


@dataclass(slots=True)
class Replay:
    """Answers the parent's program from the record, or by making its effect live."""

    past: Past
    task: Task
    recorded: dict[int, Recorded] = field(init=False)
    position: int = 0
    """The parent's position; effects answered from the record take no position of the fork."""
    conversations: dict[int, _ParentSequence] = field(default_factory=dict)
    completions: Completions = field(init=False)
    calls: int = 0
    """All model calls of the parent's program, recorded and live; `sampled` are their tokens."""
    sampled: int = 0

    def __post_init__(self) -> None:
        self.recorded = {each.position: each for each in self.past.recorded}
        self.completions = Completions(self.past.order or tuple(self.recorded))

    def answer(self, yielded: Any) -> Generator[Any, Any, Any]:
        """Answer an effect or a list of them; WishFailed is returned, never raised."""
        if isinstance(yielded, AsCompleted):
            return (yield from self._next_of(yielded))
        single = not isinstance(yielded, list | tuple)
        effects = [yielded] if single else yielded
        if not effects or not all(isinstance(effect, EFFECTS) for effect in effects):
            return (yield yielded)  # malformed; the fold refuses it
        first, self.position = self.position, self.position + len(effects)
        asked = dict(enumerate(effects, first))
        answers = {
            position: self._recorded_outcome(position, effect)
            for position, effect in asked.items()
            if isinstance(effect, CallModel) and position in self.recorded
        }
        live = {position: self._live(w) for position, w in asked.items() if position not in answers}
        if live:
            outcomes = yield from _ask(list(live.values()), single=single)
            answers |= zip(live, outcomes, strict=True)
        for position in live:
            self._compare(position, asked[position], answers[position])
        together = [answers[position] for position in asked]
        return together[0] if single else together

    def _next_of(self, yielded: AsCompleted) -> Generator[Any, Any, Completed]:
        """Return the next outcome of open effects: in the order of the record, then of completion.

        A recorded call's outcome is given as soon as all outcomes that preceded it have come again.
        """
        first = self.position
        self.position += len(yielded.wishes)
        for position, effect in enumerate(yielded.wishes, first):
            if isinstance(effect, CallModel) and position in self.recorded:
                self.completions.add_outcome(
                    position, Completed(effect, self._recorded_outcome(position, effect))
                )
            else:
                self.completions.open(position, effect, self._live(effect))
        while (completed := self.completions.next()) is None:
            done: Completed = yield AsCompleted(self.completions.unopened())
            position, own = self.completions.close(done)
            self._compare(position, own.wish, own.outcome)
            self.completions.add_outcome(position, own)
        return completed

    def _recorded_outcome(self, position: int, effect: CallModel) -> ModelAnswer | WishFailed:
        """Return the recorded outcome of a call."""
        recorded = self.recorded[position]
        if isinstance(recorded, RecordedFailure):
            return WishFailed(recorded.code, recorded.message)
        if isinstance(recorded, RecordedObservation):
            raise _diverged(position, "its program calls the model where the record has a step")
        message = Message("assistant", recorded.text, recorded.tool_calls)
        if effect.sampling and not effect.sampling.max_tokens:  # it extended no conversation
            return ModelAnswer(message, recorded.finish_reason, stopped_by=recorded.stopped_by)
        known = self.conversations.setdefault(
            recorded.sequence,
            _ParentSequence(effect.policy_id, [], _whole(effect.begun), _first_tools(effect)),
        )
        if list(effect.messages[: len(known.messages)]) != known.messages:
            raise _diverged(position, "its program sends another conversation than the record has")
        known.messages = [*effect.messages, message]
        known.add_answer(recorded, effect.sampling or self.task.sampling)
        self.calls, self.sampled = self.calls + 1, self.sampled + len(recorded.token_ids) // 4
        # A fork that is no continuation samples its own tokens only.
        sampled = len(recorded.token_ids) // 4 if self.past.continues else 0
        return ModelAnswer(
            message, recorded.finish_reason, sampled_tokens=sampled, stopped_by=recorded.stopped_by
        )

    def _live(self, effect: Reset | CallModel | Step) -> Reset | CallModel | Step:
        """Return the effect to make; a call that extends a recorded
        conversation carries its tokens."""
        if not isinstance(effect, CallModel):
            return effect
        if self.past.continues:
            effect = self._within_limits(effect)
        fitting = [
            (len(known.messages), sequence)
            for sequence, known in self.conversations.items()
            if known.policy_id == effect.policy_id and _extends(effect, known)
        ]
        length, sequence = max(fitting, default=(0, -1))
        if not fitting or (effect.begun and effect.begun.messages >= length):
            return effect
        # From here on the rollout itself has this conversation.
        return replace(effect, begun=self.conversations.pop(sequence).begun(length))

    def _within_limits(self, effect: CallModel) -> CallModel:
        """Return the call within the limits that its rollout has left; raises ProgramFailed."""
        self.calls += 1
        task, how = self.task, effect.sampling or self.task.sampling
        if self.calls > task.max_turns:
            msg = f"the program asked for more than {task.max_turns} model calls"
            raise ProgramFailed(FailureCode.TURN_LIMIT, msg)
        if not task.max_tokens or not how.max_tokens:
            return effect
        left = task.max_tokens - self.sampled
        if left <= 0:
            msg = f"the attempt has sampled all its {task.max_tokens} tokens"
            raise ProgramFailed(FailureCode.TOKEN_LIMIT, msg)
        return replace(effect, sampling=replace(how, max_tokens=min(left, how.max_tokens)))

    def recalled(self) -> list[Recalled]:
        """Return the recorded conversations of a continuation that no live call has extended."""
        return [
            Recalled(known.policy_id, known.messages, known.begun(len(known.messages)))
            for known in self.conversations.values()
            if 1 in known.tokens.mask
        ]

    def _compare(self, position: int, effect: object, answer: object) -> None:
        """Raise ProgramFailed if an outcome differs from the recorded one."""
        recorded = self.recorded.get(position)
        if isinstance(answer, ModelAnswer):
            self.sampled += answer.sampled_tokens
        if recorded is None or isinstance(effect, CallModel):
            return
        if isinstance(recorded, RecordedAnswer):
            raise _diverged(position, "its program steps where the record has a model call")
        now: object = answer
        if isinstance(answer, EnvironmentAnswer):
            now = RecordedObservation(
                position, answer.text, answer.reward, answer.terminated, answer.truncated
            )
        if isinstance(answer, WishFailed) and isinstance(recorded, RecordedFailure):
            now = replace(recorded, code=answer.code)
        if now != recorded:
            raise _diverged(
                position,
                f"the environment shows {_describe(now)}, the record has {_describe(recorded)}",
            )


def _ask(effects: list[Any], *, single: bool) -> Generator[Any, Any, Any]:
    """Make effects live; return their outcomes as a list."""
    if not single:
        return (yield effects)
    try:
        return [(yield effects[0])]
    except WishFailed as failed:
        return [failed]


def _extends(effect: CallModel, known: _ParentSequence) -> bool:
    """Return True if a call would extend the conversation, by the rules of the fold."""
    count = len(known.messages)
    same_tools = effect.tools is None or known.tools is None or effect.tools == known.tools
    return (
        same_tools
        and len(effect.messages) > count
        and list(effect.messages[:count]) == known.messages
    )


def _first_tools(effect: CallModel) -> str | None:
    """Return the tool definitions at the beginning of a conversation, given its first call."""
    return effect.tools if effect.begun else effect.tools or ""


def _describe(outcome: object) -> str:
    if isinstance(outcome, RecordedObservation):
        ends = " and ends" if outcome.terminated or outcome.truncated else ""
        return f"{outcome.text!r:.200} for {outcome.reward:+g}{ends}"
    return f"a failure ({getattr(outcome, 'code', outcome)})"


def _diverged(position: int, what: str) -> ProgramFailed:
    msg = (
        f"the record cannot be replayed: at position {position} of its parent {what}; has its "
        "program or environment changed since?"
    )
    return ProgramFailed(FailureCode.FORK_DIVERGED, msg)
