"""Boxes according to `instances`, compared with the boxes that one host has."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from rollcall.consumers.history.reading.history import History
from rollcall.consumers.log.reading import read_all
from rollcall.sandbox.boxes.host_boxes import HostBoxes
from rollcall.sandbox.boxes.leases import Lease, Leases
from rollcall.schemas.errors import WireError
from rollcall.schemas.messages import Instance

OVER = ("removed", "reaped")
UNKNOWN = "unknown"


@dataclass(slots=True)
class BoxLife:
    """The history of one box, or of one rollout that waits for a box."""

    last: Instance
    since_ms: int
    """The time of its first record."""
    mode: str
    rollout_id: str

    def take(self, instance: Instance) -> None:
        """Apply a later record, which may lack the mode or the rollout."""
        self.last = instance
        self.mode = self.mode if instance.mode == UNKNOWN else instance.mode
        self.rollout_id = instance.rollout_id or self.rollout_id

    @property
    def open(self) -> bool:
        """True if there should be a box, or a rollout that waits for one."""
        if not self.last.driver:
            return self.last.kind == "waiting"
        failed = self.last.kind == "failed" and not self.last.reason.startswith("not removed")
        return self.last.kind not in OVER and not failed


@dataclass(frozen=True, slots=True)
class BoxRow:
    """One box, or one rollout that waits for a slot."""

    box_id: str
    driver: str
    state: str
    owner: str
    host: str
    rollout_id: str
    mode: str
    age_s: float | None
    lease_s: float | None
    """Seconds since its owner renewed the lease; None if no lease is known here."""
    remark: str
    """The difference between the log and this host."""


def box_lives(history: History) -> dict[str, BoxLife]:
    """Return lives by name of the box; empty if there is no topic. Raises Unavailable."""
    topic = history.topics.instances
    lives: dict[str, BoxLife] = {}
    if topic not in history.log.topic_names():
        return lives
    for record in read_all(history.log, [topic]):
        with suppress(WireError):
            told = history.codec.decode(record.value, Instance)
            known = lives.get(told.box_id)
            if known is None:
                life = BoxLife(told, record.timestamp_ms, told.mode, told.rollout_id)
                lives[told.box_id] = life
            else:
                known.take(told)
    return lives


def box_rows(
    lives: Mapping[str, BoxLife], here: HostBoxes, leases: Leases, host: str, now_ms: int
) -> list[BoxRow]:
    """Return the boxes that are open according to the log, then those that only this host has."""
    rows = []
    for ident, life in lives.items():
        if life.open:
            remark = _missing(ident, life, here, host)
            rows.append(_row(ident, life, leases.read(ident), remark, now_ms))
    for driver, idents in here.found.items():
        rows += _strangers(driver, idents, lives, leases, host)
    return rows


def _row(ident: str, life: BoxLife, lease: Lease | None, remark: str, now_ms: int) -> BoxRow:
    told = life.last
    state = told.kind if told.driver else f"waits for {told.reason}"
    age_s = max(0, now_ms - life.since_ms) / 1000
    place = told.worker, told.host
    whose = life.rollout_id, life.mode
    lease_s = lease.age_s if lease else None
    return BoxRow(ident, told.driver, state, *place, *whose, age_s, lease_s, remark)


def _missing(ident: str, life: BoxLife, here: HostBoxes, host: str) -> str:
    """Return why a box of the log is missing here; boxes of other hosts are not checked."""
    told = life.last
    if not told.driver or told.host != host:
        return ""
    if told.driver in here.silent:
        return f"{told.driver} does not answer here"
    there = ident in here.found.get(told.driver, ())
    return "" if there or told.kind == "starting" else "in the log, not on this host"


def _strangers(
    driver: str,
    idents: Iterable[str],
    lives: Mapping[str, BoxLife],
    leases: Leases,
    host: str,
) -> Iterator[BoxRow]:
    for ident in idents:
        known = lives.get(ident)
        if known is not None and known.open:
            continue
        lease = leases.read(ident)
        owner = lease.owner if lease else "?"
        lease_s = lease.age_s if lease else None
        remark = (
            f"on this host, {known.last.kind} in the log"
            if known
            else ("on this host, not in the log")
        )
        if not leases.is_of_here(ident):
            remark += "; no lease of this state directory"
        yield BoxRow(ident, driver, "found", owner, host, "", UNKNOWN, None, lease_s, remark)
