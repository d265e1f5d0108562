"""Conversations: token sequences that are only ever extended, with the same content as messages."""

from collections.abc import Sequence
from typing import NamedTuple

from rollcall.consumers.agents.effects import Begun, CallModel, Recalled
from rollcall.schemas.ids import LONG_PREFIX, prefix_hash
from rollcall.schemas.messages import Message, ModelAnswered, Sampling

MISS_EVERY = 16
"""The number of answers per tolerated `prefix_needed`; a server that asks more
often is sent whole prefixes."""


class AnswerTokens(NamedTuple):
    """The data that an answer added to its sequence besides the ids, packed."""

    read: int
    """The number of prompt tokens that were added; the sampled ones follow them."""
    logprobs: bytes
    version: bytes
    """One version for all its tokens, or one for each if they differ."""

    @classmethod
    def of(cls, answer: ModelAnswered) -> "AnswerTokens":
        versions = answer.versions
        same = versions == versions[:4] * (len(versions) // 4)
        version = versions[:4] if same else versions
        return cls(len(answer.added_ids) // 4, answer.logprobs, version)

    def versions(self) -> bytes:
        """Return the version of each sampled token."""
        sampled = len(self.logprobs)
        return self.version if len(self.version) == sampled else self.version * (sampled // 4)


class Conversation:
    """One token sequence that is only ever extended, with the same content as messages."""

    __slots__ = (
        "answers",
        "begun",
        "busy",
        "hash",
        "ids",
        "index",
        "last",
        "messages",
        "misses",
        "policy_id",
        "recorded",
        "samplings",
        "tools",
        "untrainable",
    )

    def __init__(
        self,
        index: int,
        policy_id: str,
        messages: Sequence[Message] = (),
        begun: bytes = b"",
        tools: str | None = "",
        recorded: Begun | None = None,
    ) -> None:
        self.index = index
        self.policy_id = policy_id
        self.messages: list[Message] = list(messages)
        self.answers: list[AnswerTokens] = []
        self.last: ModelAnswered | None = None
        """The last answer, unchanged."""
        self.recorded = recorded
        """The mask, log-probabilities and versions of its first tokens, if
        some of them were sampled."""
        self.samplings: list[Sampling] = list(recorded.samplings) if recorded else []
        """The sampling parameters of each answer."""
        self.begun = len(begun) // 4
        """The number of tokens before the first answer; they stand for the first messages."""
        self.ids = bytearray(begun)
        """All its token ids, packed."""
        self.hash = prefix_hash(begun)
        """The running hash of all its tokens, so that a long prefix is not
        hashed again at every turn."""
        self.busy = False
        self.misses = 0
        """The number of times that a server asked for its prefix."""
        self.tools = tools
        """The tool definitions at its beginning; None if they are unknown, since they are part
        of the tokens that it began with."""
        self.untrainable = False
        """True if some answer states that its tokens are not those that were sampled."""

    @property
    def length(self) -> int:
        """The number of its tokens."""
        return len(self.ids) // 4

    def sampled(self) -> bool:
        """Return True if some of its tokens were sampled by a policy."""
        return bool(self.answers) or self.recorded is not None

    def begins(self, effect: CallModel, policy_id: str) -> bool:
        """Return True if a call extends it by at least one message, with
        the same policy and tools."""
        messages, known = effect.messages, len(self.messages)
        if policy_id != self.policy_id or len(messages) <= known or not self._told_of(effect.tools):
            return False
        first = messages[:known]
        return (first if isinstance(first, list) else list(first)) == self.messages

    def adopt(self, messages: Sequence[Message]) -> None:
        """Replace the last message by the equal one of the call that extends it: an agent's
        process that sends it back would otherwise have it held in memory twice."""
        if self.messages:
            self.messages[-1] = messages[len(self.messages) - 1]

    def _told_of(self, tools: str | None) -> bool:
        """Return True if a call with these tools needs no other definitions in its prompt."""
        return tools is None or self.tools is None or tools == self.tools

    def add_answer(
        self, new: Sequence[Message], answer: ModelAnswered, reply: Message, sampling: Sampling
    ) -> None:
        """Extend it by the new messages of a call and by the model's answer."""
        self.messages += new
        self.messages.append(reply)
        self.answers.append(AnswerTokens.of(answer))
        self.last = answer
        self.untrainable = self.untrainable or bool(answer.untrainable)
        self.samplings.append(sampling)
        added = answer.added_ids + answer.token_ids
        self.ids += added
        self.hash.update(added)

    def held(self) -> bool:
        """Return True if its server can be expected to hold its tokens."""
        answered = len(self.answers)
        seldom = self.misses * MISS_EVERY <= answered + MISS_EVERY
        return self.length >= LONG_PREFIX and answered > 0 and seldom

    def packed(self) -> bytes:
        """Return a copy of all token ids."""
        return bytes(self.ids)


def conversation_for(
    effect: CallModel, policy_id: str, conversations: list[Conversation]
) -> Conversation:
    """Return the longest conversation that a call extends, the latest among equals; else a new one.

    A conversation that began with other tools is not extended: templates state the tools at the
    beginning of a sequence, and sampled tokens must not follow a prompt that did not exist when
    they were sampled.

    A call with `begun` tokens begins a new one, unless a known conversation has at least as many
    messages.
    """
    # A busy one is being extended by another call, and two answers cannot both follow it.
    known = [c for c in conversations if not c.busy and c.begins(effect, policy_id)]
    if effect.begun is not None:
        known = [c for c in known if len(c.messages) >= effect.begun.messages]
    if known:
        longest = max(known, key=lambda c: (len(c.messages), c.index))
        longest.adopt(effect.messages)
        return longest
    fresh = _begun_by(effect, policy_id, len(conversations))
    conversations.append(fresh)
    return fresh


def counted_after(
    effect: CallModel, policy_id: str, conversations: list[Conversation]
) -> Conversation:
    """Return a copy of the conversation for a call that only counts tokens, so that the rollout's
    own is unchanged.

    It is the conversation that a sampling call would extend, even if another call extends it now.
    """
    known = [c for c in conversations if c.begins(effect, policy_id)]
    longest = max(known, key=lambda c: (len(c.messages), c.index), default=None)
    begun = 0 if effect.begun is None else effect.begun.messages
    if longest is None or begun > len(longest.messages):
        return _begun_by(effect, policy_id, len(conversations))
    return Conversation(longest.index, policy_id, longest.messages, longest.packed(), longest.tools)


def _begun_by(effect: CallModel, policy_id: str, index: int) -> Conversation:
    begun = effect.begun
    if begun is None:
        return Conversation(index, policy_id, tools=effect.tools or "")
    messages = effect.messages[: begun.messages]
    recorded = begun if begun.mask else None
    return Conversation(index, policy_id, messages, begun.ids, effect.tools, recorded)


def recalled_as(recalled: Recalled, policy_id: str, index: int) -> Conversation:
    """Return the conversation of a Recalled; no call extends it."""
    begun = recalled.begun
    recorded = begun if begun.mask else None
    return Conversation(index, policy_id, recalled.messages, begun.ids, None, recorded)
