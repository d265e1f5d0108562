"""Which refusals of a broker are waited out, and which end the process."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from consumers.source import retried
from schemas.errors import Unfit


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    ],
)
def test_what_a_broker_says_while_it_starts_is_waited_out(code: int) -> None:
    answers: list[int | None] = [code, None]

    def ask() -> str:
        refusal = answers.pop(0)
        if refusal is not None:
            raise KafkaException(KafkaError(refusal))
        return "offsets"

    assert retried(ask) == "offsets"


def test_what_no_wait_will_mend_ends_the_process() -> None:
    def ask() -> None:
        raise KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))

    with pytest.raises(Unfit, match="the broker refuses"):
        retried(ask)
