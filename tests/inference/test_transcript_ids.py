"""A conversation as ids: read back exactly, turn by turn as well as at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.inference import transcript_ids
from rollcall.inference.transcript_ids import (
    MARK,
    ROLES,
    answer_ids,
    message_ids,
    messages_of,
    text_ids,
)
from rollcall.schemas.errors import WorkFailed
from rollcall.schemas.messages import Message
from rollcall.schemas.packed import ids_of, pack_ids
from tests.support.avro_messages import FEW

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
MESSAGES = st.lists(
    st.builds(Message, st.sampled_from(ROLES), TEXTS, TEXTS, TEXTS, TEXTS), max_size=5
)


@FEW
@given(MESSAGES)
def test_messages_are_read_back_from_their_ids(messages: list[Message]) -> None:
    ids = message_ids(messages)

    assert messages_of(ids_of(pack_ids(ids)).tolist()) == messages


@FEW
@given(MESSAGES, TEXTS, TEXTS, MESSAGES)
def test_turn_by_turn_gives_the_ids_of_the_whole(
    asked: list[Message], text: str, calls: str, more: list[Message]
) -> None:
    reply = Message("assistant", text, calls)

    turns = [*message_ids(asked), MARK["assistant"], *answer_ids(text, calls), *message_ids(more)]

    assert turns == message_ids([*asked, reply, *more])


def test_a_text_has_an_id_for_every_three_bytes() -> None:
    assert text_ids("") == []
    assert text_ids("abcd") == [3 << 24 | 0x616263, 1 << 24 | 0x64]
    assert len(text_ids("é" * 30)) == 20


@pytest.mark.parametrize(
    "ids",
    [
        [5, 6, 7],
        text_ids("abc"),
        [MARK["name"], *text_ids("abc")],
        [MARK["user"], 0],
        [MARK["user"], -1],
        [MARK["user"], 1 << 24 | 0xFF],
        [MARK["user"], 1 << 24 | 0x100],
        [max(MARK.values()) + 1],
        [(1 << 31) - 1],
    ],
)
def test_ids_of_another_vocabulary_are_refused_as_a_prefix(ids: list[int]) -> None:
    with pytest.raises(WorkFailed, match="begun by another engine") as refused:
        messages_of(ids)

    assert (refused.value.code, refused.value.retriable) == ("bad_prefix", False)


def test_a_role_without_a_mark_is_refused() -> None:
    with pytest.raises(WorkFailed, match="role 'judge'; servers of messages know system"):
        message_ids([Message("judge", "x")])


def test_the_vocabulary_digest_matches_existing_journals() -> None:
    assert transcript_ids.DIGEST == "5c0d154ce520d381dbca2db5c6ab0fe6"
