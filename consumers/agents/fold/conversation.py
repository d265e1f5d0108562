"""Conversations: token sequences that are only ever extended, and the same as messages."""

from collections.abc import Sequence
from typing import NamedTuple

from consumers.agents.wishes import Begun, CallModel, Recalled
from schemas.ids import LONG_PREFIX, prefix_hash
from schemas.messages import Message, ModelAnswered, Sampling

MISS_EVERY = 16
"""Answers to a question for a prefix; servers that ask more often, or always, are sent it whole."""


class AnswerTokens(NamedTuple):
    """What an answer added to its sequence beside the ids, packed."""

    read: int
    """How many its prompt was given; those that were sampled came behind them."""
    logprobs: bytes
    version: bytes
    """The one of all its tokens; where they differ, of each."""

    @classmethod
    def of(cls, answer: ModelAnswered) -> "AnswerTokens":
        versions = answer.versions
        same = versions == versions[:4] * (len(versions) // 4)
        version = versions[:4] if same else versions
        return cls(len(answer.added_ids) // 4, answer.logprobs, version)

    def versions(self) -> bytes:
        """Of each sampled token."""
        sampled = len(self.logprobs)
        return self.version if len(self.version) == sampled else self.version * (sampled // 4)


class Conversation:
    """One token sequence that is only ever extended, and the same as messages."""

    __slots__ = (
        "answers", "begun", "busy", "hash", "ids", "index", "last", "messages", "misses",
        "policy_id", "recorded", "samplings", "tools", "untrainable",
    )  # fmt: skip

    def __init__(
        self, index: int, policy_id: str, messages: Sequence[Message] = (), begun: bytes = b"",
        tools: str | None = "", recorded: Begun | None = None,
    ) -> None:  # fmt: skip
        self.index = index
        self.policy_id = policy_id
        self.messages: list[Message] = list(messages)
        self.answers: list[AnswerTokens] = []
        self.last: ModelAnswered | None = None
        """The last of them, as it came."""
        self.recorded = recorded
        """Where some of what it began with was sampled: which, how probable it was, and by what."""
        self.samplings: list[Sampling] = list(recorded.samplings) if recorded else []
        """How each answer was asked for."""
        self.begun = len(begun) // 4
        """Tokens that were there before the first answer; they stand for the first messages."""
        self.ids = bytearray(begun)
        """Of all its tokens, packed."""
        self.hash = prefix_hash(begun)
        """Of all its tokens: a long one is named at every turn, and not gone through for that."""
        self.busy = False
        self.misses = 0
        """How often its prefix was asked for."""
        self.tools = tools
        """Of which its policy was told where it began; None: nobody knows, they are in the tokens
        that it began with."""
        self.untrainable = False
        """Whether some answer in it says that its tokens are not those that were sampled."""

    @property
    def length(self) -> int:
        """How many tokens it has."""
        return len(self.ids) // 4

    def sampled(self) -> bool:
        """Whether a policy has said anything in it."""
        return bool(self.answers) or self.recorded is not None

    def begins(self, wish: CallModel, policy_id: str) -> bool:
        """Whether a call's messages go on from here, with at least one new and the same tools."""
        messages, known = wish.messages, len(self.messages)
        if policy_id != self.policy_id or len(messages) <= known or not self._told_of(wish.tools):
            return False
        first = messages[:known]
        return (first if isinstance(first, list) else list(first)) == self.messages

    def adopt(self, messages: Sequence[Message]) -> None:
        """Hold the last message as the call that goes on from here has it: it is the same, and an
        agent's process that sends it back would have it held twice."""
        if self.messages:
            self.messages[-1] = messages[len(self.messages) - 1]

    def _told_of(self, tools: str | None) -> bool:
        """Whether a call with these needs no other definitions in its prompt."""
        return tools is None or self.tools is None or tools == self.tools

    def take(
        self, new: Sequence[Message], answer: ModelAnswered, reply: Message, sampling: Sampling
    ) -> None:
        """Extend it by what was new in a call and by what the model answered."""
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
        """Whether its server may be expected to hold it."""
        answered = len(self.answers)
        seldom = self.misses * MISS_EVERY <= answered + MISS_EVERY
        return self.length >= LONG_PREFIX and answered > 0 and seldom

    def packed(self) -> bytes:
        """All token ids, as they are now."""
        return bytes(self.ids)


def conversation_for(
    wish: CallModel, policy_id: str, conversations: list[Conversation]
) -> Conversation:
    """The longest one that a call extends, the latest among equals; else a new one.

    One that began with other tools is not extended: templates tell of them where a sequence begins,
    and nothing that was sampled is put after words which were not there then.

    Tokens that a call begins with begin a new one, unless one that is known reaches as far.
    """
    known = [c for c in conversations if not c.busy and c.begins(wish, policy_id)]
    if wish.begun is not None:
        known = [c for c in known if len(c.messages) >= wish.begun.messages]
    if known:
        longest = max(known, key=lambda c: (len(c.messages), c.index))
        longest.adopt(wish.messages)
        return longest
    fresh = _begun_by(wish, policy_id, len(conversations))
    conversations.append(fresh)
    return fresh


def counted_after(
    wish: CallModel, policy_id: str, conversations: list[Conversation]
) -> Conversation:
    """What tokens are only counted after: a copy, so that the rollout's own stays as it is.

    Of the same conversation that a call would extend, also where that is being extended now.
    """
    known = [c for c in conversations if c.begins(wish, policy_id)]
    found = max(known, key=lambda c: (len(c.messages), c.index), default=None)
    if found is None or (wish.begun is not None and wish.begun.messages > len(found.messages)):
        return _begun_by(wish, policy_id, len(conversations))
    return Conversation(found.index, policy_id, found.messages, found.packed(), found.tools)


def _begun_by(wish: CallModel, policy_id: str, index: int) -> Conversation:
    begun = wish.begun
    if begun is None:
        return Conversation(index, policy_id, tools=wish.tools or "")
    messages = wish.messages[: begun.messages]
    recorded = begun if begun.mask else None
    return Conversation(index, policy_id, messages, begun.ids, wish.tools, recorded)


def recalled_as(recalled: Recalled, policy_id: str, index: int) -> Conversation:
    """One that no call goes on with."""
    begun = recalled.begun
    recorded = begun if begun.mask else None
    return Conversation(index, policy_id, recalled.messages, begun.ids, None, recorded)
