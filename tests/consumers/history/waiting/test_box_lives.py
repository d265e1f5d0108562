"""`rollcall boxes`: the boxes in the log compared with the boxes of a host."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcall.compose.cli.boxes import print_boxes
from rollcall.consumers.history.waiting.box_lives import BoxRow, box_lives, box_rows
from rollcall.sandbox.boxes.host_boxes import HostBoxes
from rollcall.sandbox.boxes.leases import Leases
from rollcall.schemas.messages import Instance
from tests.support.recorded_run import page
from tests.support.rig import Rig

HERE, NOW_S = "this-host", 90.0


class Yard:
    """A log with records of boxes, and the boxes that a host has."""

    def __init__(self, directory: Path) -> None:
        self.rig = Rig(partitions=2)
        self.now_s = 100.0
        self.leases = Leases(directory, "somebody", clock=lambda: self.now_s)
        self.found: dict[str, list[str]] = {"odd": []}
        self.silent: dict[str, str] = {}

    def tell(self, ident: str, *kinds: str, driver: str = "odd", host: str = HERE) -> str:
        """Write one worker's records about one box; the borrower is named when it is lent."""
        for kind in kinds:
            mode = "unknown" if kind == "removed" else "persistent"
            whose = ("r1", 2) if kind in ("lent", "waiting") else ("", 0)
            reason = "box" if not driver else ""
            instance = Instance(ident, "e1", kind, host, driver, "", mode, *whose, reason)
            self.rig.write(self.rig.topics.instances, ident, instance)
        return ident

    def rows(self) -> list[BoxRow]:
        here = HostBoxes(self.found, self.silent)
        now_ms = int((self.rig.clock() + NOW_S) * 1000)
        return box_rows(box_lives(self.rig), here, self.leases, HERE, now_ms)


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    made = Yard(tmp_path / "leases")
    yield made
    made.leases.close()


def test_a_box_is_listed_with_owner_borrower_mode_age_and_lease(yard: Yard) -> None:
    ident = yard.tell(yard.leases.draw(), "starting", "ready", "lent")
    yard.found["odd"] = [ident]
    yard.leases.take(ident, "odd")
    yard.now_s += 3

    [row] = yard.rows()

    assert row.age_s is not None
    assert row.lease_s == 3.0
    assert (row.state, row.owner, row.host, row.rollout_id) == ("lent", "e1", HERE, "r1")
    assert (row.mode, row.remark) == ("persistent", "")


@pytest.mark.parametrize("last", ["removed", "reaped", "failed"])
def test_a_removed_box_is_not_listed(yard: Yard, last: str) -> None:
    yard.tell(yard.leases.draw(), "starting", "ready", "lent", "returned", last)

    assert yard.rows() == []


def test_a_box_in_the_log_and_not_on_the_host_is_reported(yard: Yard) -> None:
    yard.tell(yard.leases.draw(), "starting", "ready", "lent", "returned")
    yard.tell(yard.leases.draw(), "starting")
    yard.tell(yard.leases.draw(), "starting", "ready", host="another-host")

    assert sorted(row.remark for row in yard.rows()) == ["", "", "in the log, not on this host"]


def test_a_box_of_a_silent_driver_is_reported_as_unknown(yard: Yard) -> None:
    yard.tell(yard.leases.draw(), "starting", "ready")
    yard.found, yard.silent = {}, {"odd": "no engine"}

    assert [row.remark for row in yard.rows()] == ["odd does not answer here"]


def test_a_box_on_the_host_and_not_in_the_log_is_reported(yard: Yard) -> None:
    gone = yard.tell(yard.leases.draw(), "starting", "ready", "lent", "returned", "removed")
    unknown = yard.leases.draw()
    yard.leases.take(unknown, "odd")
    yard.found["odd"] = [gone, unknown, "f00f00f00f00f00f"]

    rows = {row.box_id: (row.owner, row.remark) for row in yard.rows()}

    assert rows == {
        gone: ("?", "on this host, removed in the log"),
        unknown: ("somebody", "on this host, not in the log"),
        "f00f00f00f00f00f": (
            "?",
            "on this host, not in the log; no lease of this state directory",
        ),
    }


def test_a_box_whose_removal_failed_is_still_listed(yard: Yard) -> None:
    ident = yard.tell(yard.leases.draw(), "starting", "ready", "lent", "returned")
    stuck = Instance(ident, "e1", "failed", HERE, "odd", reason="not removed: it clings")
    yard.rig.write(yard.rig.topics.instances, ident, stuck)
    yard.found["odd"] = [ident]

    [row] = yard.rows()

    assert (row.state, row.rollout_id, row.mode) == ("failed", "r1", "persistent")


def test_a_waiting_rollout_is_listed_until_it_has_its_slot(yard: Yard) -> None:
    yard.tell("aaaaaaaa", "waiting", driver="")
    yard.tell("bbbbbbbb", "waiting", "lent", driver="")
    yard.tell("cccccccc", "waiting", "failed", driver="")

    [row] = yard.rows()

    assert (row.box_id, row.state, row.rollout_id) == ("aaaaaaaa", "waits for box", "r1")


def test_unreadable_records_are_skipped_and_a_missing_topic_has_no_boxes(yard: Yard) -> None:
    yard.rig.log.append(yard.rig.topics.instances, b"x", b"rubbish", 0)
    assert yard.rows() == []

    del yard.rig.log.topics[yard.rig.topics.instances]

    assert yard.rows() == []


def test_the_page_has_a_row_for_each_box_and_names_silent_drivers(yard: Yard) -> None:
    yard.tell(yard.leases.draw(), "starting", "ready", "lent", "returned")

    told = page(lambda terminal: print_boxes(yard.rows(), {"docker": "no engine"}, terminal))
    none = page(lambda terminal: print_boxes([], {}, terminal))

    assert "docker does not answer: no engine" in told
    assert "e1 on this-host" in told
    assert "in the log, not on this host" in " ".join(told.split())
    assert "no boxes" in none
