"""Every error code has one verdict."""

import pytest
from confluent_kafka import KafkaError

from rollcall.producers.error_codes import VERDICTS, ErrorReaction, reaction_to

CODES = {
    name: getattr(KafkaError, name)
    for name in dir(KafkaError)
    if isinstance(getattr(KafkaError, name), int) and name.strip("_").isupper()
}


def test_the_table_covers_every_error_code_of_the_client() -> None:
    assert len(CODES) > 150
    assert set(CODES) - set(VERDICTS) == set()
    assert {KafkaError(code).name() for code in CODES.values()} == set(CODES)


def test_a_fatal_error_is_fatal_for_any_code() -> None:
    error = KafkaError(KafkaError.STALE_MEMBER_EPOCH, "fenced", True)

    assert reaction_to(error) is ErrorReaction.FATAL


@pytest.mark.parametrize("retriable", [True, False])
def test_an_unknown_code_is_judged_by_the_client(retriable: bool) -> None:
    error = KafkaError(9999, "new", False, retriable)

    assert reaction_to(error) is (ErrorReaction.WAITED if retriable else ErrorReaction.FATAL)
