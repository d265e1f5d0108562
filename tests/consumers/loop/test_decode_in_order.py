"""Records that are decoded in their order, without a loop."""

from structlog.testing import capture_logs

from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.decode_in_order import DecodeInOrder
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import WireError
from rollcall.schemas.messages import Control, Trajectory
from tests.support.avro_messages import Shelf, example
from tests.support.rig import Clock, Fickle


def record_of(offset: int, value: bytes) -> Record:
    return Record("t.control", 0, offset, b"k", value, 0)


def test_an_outage_is_logged_by_name_at_each_request() -> None:
    registry, clock, shelf = Fickle(), Clock(), Shelf(10)
    trajectory = example(Trajectory)
    value = Codec(registry, objects=shelf).encode("t.trajectories", trajectory)
    shelf.away = True
    codec = Codec(registry, objects=shelf, clock=clock)

    with capture_logs() as logs:
        for _ in range(2):  # the second uses the first one's knowledge
            held = DecodeInOrder(codec, Trajectory)
            held.add([record_of(0, value)])
            assert list(held.ready()) == []

    assert [line["event"] for line in logs] == ["store_unavailable"] * 2


def test_a_record_that_waits_for_the_registry_blocks_later_ones() -> None:
    registry, clock = Fickle(), Clock()
    values = [Codec(registry).encode("t.control", Control(kind)) for kind in ("pause", "resume")]
    held = DecodeInOrder(Codec(registry, clock=clock), Control)
    held.add([record_of(0, values[0]), record_of(1, b"no magic"), record_of(2, values[1])])

    registry.away = True
    with capture_logs() as logs:
        waiting = [list(held.ready()) for _ in range(3)]
    registry.away = False
    clock.pass_by(60)
    ready = list(held.ready())

    assert waiting == [[], [], []]
    assert [line["event"] for line in logs] == ["registry_unavailable"]
    assert [record.offset for record, _ in ready] == [0, 1, 2]
    assert isinstance(ready[1][1], WireError)
    assert (ready[0][1], ready[2][1]) == (Control("pause"), Control("resume"))
    assert not held
