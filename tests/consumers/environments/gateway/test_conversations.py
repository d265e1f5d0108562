"""Continued conversations of a session are stored once, and each stays as it was."""

from hypothesis import given
from hypothesis import strategies as st

from rollcall.consumers.environments.gateway.conversations import (
    ConversationStore,
    SharedTurns,
)
from rollcall.schemas.messages import Message


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=25))
def test_continued_conversations_leave_the_others_unchanged(
    went_on: list[tuple[int, int]],
) -> None:
    held, expected = ConversationStore(), dict[str, tuple[Message, ...]]()
    for number, (before, more) in enumerate(went_on):
        known = tuple(held.get(f"resp_{before}", ()))
        said = (*known, *(Message("user", f"{number} {at}") for at in range(more)))
        held.add({f"resp_{number}": said})
        expected[f"resp_{number}"] = said

    assert {name: tuple(turns) for name, turns in held.items()} == expected
    for name, turns in held.items():
        whole = expected[name]
        assert (len(turns), turns[1:], turns[:-1]) == (len(whole), whole[1:], whole[:-1])
        assert not whole or (turns[-1], turns[0]) == (whole[-1], whole[0])


def test_a_continued_conversation_shares_one_list() -> None:
    held, said = ConversationStore(), tuple[Message, ...]()
    for number in range(50):
        said = (*said, Message("user", "asks"), Message("assistant", "says"))
        held.add({f"resp_{number}": said})

    lists = {id(turns._list) for turns in held.values() if isinstance(turns, SharedTurns)}
    assert len(lists) == 1
