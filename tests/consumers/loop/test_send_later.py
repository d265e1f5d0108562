"""Records that wait for the registry or the object store."""

from structlog.testing import capture_logs

from rollcall.consumers.loop.answers import SendLater
from rollcall.schemas.errors import Unavailable

AWAY = Unavailable("the registry does not answer")


def test_a_waiting_record_is_tried_once_per_drain() -> None:
    waiting: SendLater[str] = SendLater("sending_waits")
    for name in ("a", "b"):
        waiting.add(name, AWAY)

    tried = []
    for name in waiting.drain():
        tried.append(name)
        waiting.add(name, AWAY)

    assert tried == ["a", "b"]
    assert list(waiting.drain()) == ["a", "b"]
    assert list(waiting.drain()) == []


def test_a_wait_is_logged_once_until_it_is_over() -> None:
    waiting: SendLater[str] = SendLater("sending_waits")

    with capture_logs() as logs:
        waiting.add("a", AWAY, kind="ModelCall")
        for _ in range(3):
            for name in waiting.drain():
                waiting.add(name, AWAY, kind="ModelCall")
        list(waiting.drain())
        waiting.add("b", AWAY, kind="Event")

    assert [(line["event"], line["kind"]) for line in logs] == [
        ("sending_waits", "ModelCall"),
        ("sending_waits", "Event"),
    ]
