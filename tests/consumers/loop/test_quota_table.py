"""The `quotas` topic: the last record of each user counts."""

from collections.abc import Callable

import pytest

from rollcall.consumers.history.waiting.user_limits import read_quotas
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.quota_table import QuotaTable, limits_of
from rollcall.producers.control import send_quota
from rollcall.schemas.errors import Refused, WireError
from rollcall.schemas.messages import Control, Quota
from tests.support.rig import Rig

EIGHT = Quota("ann", running=8)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def say(rig: Rig, user: str, quota: Quota | None) -> None:
    send_quota(rig.pen, rig.codec, rig.topics, user, quota)


def table_of(rig: Rig, unreadable: Callable[[Record, WireError], None] = print) -> QuotaTable:
    default = Quota("", running=3)
    return QuotaTable(rig.log, rig.codec, rig.topics, default, unreadable=unreadable)


def test_a_users_last_record_counts_and_others_have_the_default(rig: Rig) -> None:
    say(rig, "ann", Quota("ann", running=2))
    say(rig, "bob", Quota("bob", calls_per_s=0.5))
    say(rig, "ann", EIGHT)

    table = read_quotas(rig, Quota("", running=3))

    assert table.of("ann") == EIGHT
    assert table.of("bob") == Quota("bob", 0, 0.5)
    assert table.of("eve").running == 3


def test_a_revoked_quota_leaves_the_default(rig: Rig) -> None:
    table = table_of(rig)
    say(rig, "ann", EIGHT)
    assert table.follow() == {"ann"}
    say(rig, "ann", None)

    assert table.follow() == {"ann"}
    assert table.of("ann").running == 3
    assert not table.records


@pytest.mark.parametrize(
    "wrong",
    [
        Quota("ann", running=-1),
        Quota("ann", calls_per_s=float("nan")),
        Quota("ann", calls_per_s=float("inf")),
        Quota("ann", calls_per_s=-0.5),
        Quota("bob", running=1),
        b"no magic",
    ],
)
def test_an_invalid_quota_leaves_the_default_and_is_reported(
    rig: Rig, wrong: Quota | bytes
) -> None:
    """Also where an earlier one made sense: after a compaction that is not there any more."""
    found: list[WireError] = []
    table = table_of(rig, lambda record, error: found.append(error))
    say(rig, "ann", EIGHT)
    value = wrong if isinstance(wrong, bytes) else rig.codec.encode(rig.topics.quotas, wrong)
    rig.log.append(rig.topics.quotas, b"ann", value)

    table.follow()

    assert len(found) == 1
    assert table.of("ann").running == 3


def test_a_quota_record_without_a_valid_key_is_ignored(rig: Rig) -> None:
    rig.log.append(rig.topics.quotas, None, rig.codec.encode(rig.topics.quotas, EIGHT))
    rig.log.append(rig.topics.quotas, b"\xff", rig.codec.encode(rig.topics.quotas, EIGHT))
    rig.log.append(rig.topics.quotas, b"ann", rig.codec.encode("t.control", Control("pause")))
    found: list[WireError] = []
    table = table_of(rig, lambda record, error: found.append(error))

    table.follow()

    assert len(found) == 3
    assert not table.records


def test_quotas_held_by_a_registry_outage_apply_after_it(rig: Rig) -> None:
    say(rig, "ann", EIGHT)
    say(rig, "ann", None)
    say(rig, "ann", EIGHT)
    rig.codec = type(rig.codec)(rig.registry, clock=rig.clock)
    table = table_of(rig)
    rig.registry.away = True
    assert table.follow() == set()
    assert not table.known

    rig.registry.away = False
    rig.clock.pass_by(60)
    table.follow()

    assert table.known
    assert table.of("ann") == EIGHT


def test_an_invalid_quota_is_refused_before_it_is_sent(rig: Rig) -> None:
    for wrong in (Quota(""), Quota("u" * 600), Quota("\ud800"), Quota("ann", running=-1)):
        with pytest.raises(Refused):
            say(rig, wrong.user, wrong)
    assert rig.log.all(rig.topics.quotas) == []


def test_the_description_of_a_quota_names_its_limits() -> None:
    assert limits_of(Quota("ann", 8, 20.0)) == (
        "8 rollouts running at once, 20 model calls a second"
    )
    assert limits_of(Quota("ann")) == "as much as there is"
