"""`rollcall rescore`: other rewards for recorded trajectories, and how they agree with the old.

What judges and writes is the rewards group's own code; only who reads is different. The records go
to `trajectories.scored` under a scoring id of their own, so whoever trains does not see them. Doing
it twice writes them twice, which is harmless: the first of each rollout and scoring id counts.
"""

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from compose.workers.build import Workshop
from consumers.history.agreement import Agreement
from consumers.history.ranges import behind, extent_of
from consumers.history.selection import Selection, read_paced
from consumers.log.protocols import Record
from producers.publisher import flush_all
from schemas.codec import Codec
from schemas.errors import Refused, WireError
from schemas.messages import ScoredTrajectory
from schemas.topics import Topics
from schemas.whole_files import appearing, refuse_used

if TYPE_CHECKING:
    from compose.cluster import Cluster

FLUSH_S = 60.0
ROWS = 500
NAMES = ("rollout_id", "run_id", "policy_id", "group_id")
LISTED = 20
PICKED = ("scoring_id", "trajectory.rollout_id", "trajectory.attempt", "total")
SCORING_ID = re.compile(r"[A-Za-z0-9_.+-]{1,100}")

COUNTS = {
    "have both rewards": "compared",
    "agree within 1e-9": "agree",
    "succeed only now": "succeed_now",
    "succeeded only then": "fail_now",
    "changed sign": "signs_flipped",
    "have the old one only": "only_old",
    "have the new one only": "only_new",
}
"""What is told of an agreement, and where it is kept."""

Sink = Callable[[ScoredTrajectory, Record], None]
"""Takes what was judged, and the record that it was read from."""


@dataclass(frozen=True, slots=True)
class NotJudged:
    """A finished trajectory that got no reward."""

    rollout_id: str
    attempt: int
    reason: str


@dataclass(slots=True)
class Rescored:
    """What came of it."""

    scoring_id: str
    to: str
    """Where the rewards went; empty for a dry run."""
    trajectories: int = 0
    rewarded: int = 0
    unfinished: int = 0
    """Rollouts that did not finish; nobody knows what they would have earned."""
    failed: int = 0
    """Trajectories that the scorer gave no reward, because it raised or did not come back."""
    first_failed: list[NotJudged] = field(default_factory=list)
    agreements: list[Agreement] = field(default_factory=list)
    seconds: float = 0.0
    totals: dict[tuple[str, int], float | None] = field(default_factory=dict)
    """By rollout and attempt."""

    def take(self, scored: ScoredTrajectory) -> None:
        trajectory = scored.trajectory
        name = trajectory.rollout_id, trajectory.attempt
        self.totals[name] = scored.total
        self.trajectories += 1
        if scored.total is not None:
            self.rewarded += 1
        elif trajectory.status != "finished":
            self.unfinished += 1
        else:
            self.failed += 1
            if self.failed <= LISTED:
                self.first_failed.append(NotJudged(*name, scored.reason))

    def plain(self) -> dict[str, Any]:
        """All of it but the single rewards, as JSON knows values."""
        told = asdict(replace(self, totals={}))
        del told["totals"]
        for made, agreement in zip(told["agreements"], self.agreements, strict=True):
            made["mean_difference"] = agreement.mean_difference
        return told


def rescore(
    cluster: "Cluster",
    scorers: Sequence[str],
    selection: Selection,
    *,
    scoring_id: str = "",
    parquet: Path | None = None,
    dry_run: bool = False,
    success_at: float = 1.0,
) -> Rescored:
    """Judge the trajectories of a range anew; raises Refused before anything is written."""
    scoring_id = scoring_id or default_id(scorers)
    if not SCORING_ID.fullmatch(scoring_id):
        msg = f"scoring id {scoring_id!r} must be 1-100 of A-Z a-z 0-9 _ . + -"
        raise Refused(msg)
    if parquet and dry_run:
        msg = "--dry-run writes nothing, so it goes without --parquet"
        raise Refused(msg)
    publisher = cluster.log.publisher(bulk=True)
    main = threading.current_thread() is threading.main_thread()
    shop = Workshop(cluster.log, cluster.codec, cluster.topics, cluster.settings, watched=main)
    role = shop.scoring("rescore", publisher, scorers, scoring_id)
    began = time.monotonic()
    read = selection.trajectories()
    # Settled before the first reward is written: what we write is not what we compare with.
    before = extent_of(cluster.log, cluster.topics.scored, behind(selection.span.since_ms))
    found = Rescored(scoring_id, _named(cluster.topics, parquet, dry_run=dry_run))
    with _sink(role.publish, parquet, dry_run=dry_run) as write:
        for record, trajectory in read:
            scored = role.judge(record, trajectory)
            found.take(scored)
            write(scored, record)
            if not found.trajectories % ROWS:
                publisher.poll()
    flush_all(publisher, FLUSH_S, "rewards", "it is safe to do it again")
    old = read_paced(cluster.log, before, selection.pace)
    found.agreements = _agreements(cluster.codec, old, found.totals, success_at)
    found.seconds = time.monotonic() - began
    return found


def default_id(scorers: Sequence[str]) -> str:
    """Named after the scorers, so that doing it again is doing the same."""
    return "rescore-" + "+".join(re.sub(r"[^A-Za-z0-9_.-]", "-", name) for name in scorers)


def _named(topics: Topics, parquet: Path | None, *, dry_run: bool) -> str:
    if dry_run:
        return ""
    return str(parquet) if parquet else topics.scored


@contextmanager
def _sink(publish: Sink, parquet: Path | None, *, dry_run: bool) -> Iterator[Sink]:
    """Where rewards go: nowhere, into a Parquet file, or to the topic."""
    if dry_run:
        yield lambda scored, record: None
    elif parquet:
        with RewardsFile(parquet) as file:
            yield lambda scored, record: file.take(scored)
    else:
        yield publish


def _agreements(
    codec: Codec,
    old: Iterable[Record],
    totals: Mapping[tuple[str, int], float | None],
    success_at: float,
) -> list[Agreement]:
    """One for each scoring that was there, over its first record of every trajectory."""
    found: dict[str, Agreement] = {}
    seen: dict[str, set[tuple[str, int]]] = {}
    for record in old:
        with suppress(WireError):  # whoever reads it as a group buries it
            scoring_id, *name, total = codec.pick(record.value, ScoredTrajectory, *PICKED)
            rollout_id, attempt = name
            known = seen.setdefault(scoring_id, set())
            if (rollout_id, attempt) in known or (rollout_id, attempt) not in totals:
                continue
            known.add((rollout_id, attempt))
            agreement = found.setdefault(scoring_id, Agreement(scoring_id, success_at))
            agreement.take(rollout_id, attempt, total, totals[rollout_id, attempt])
    return [found[scoring_id] for scoring_id in sorted(found)]


class RewardsFile:
    """One row per trajectory in `rewards.parquet`, there whole or not at all."""

    def __init__(self, directory: Path) -> None:
        refuse_used(directory, "--parquet")
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / "rewards.parquet"
        self._rows: list[dict[str, Any]] = []
        self._ends = ExitStack()

    def __enter__(self) -> "RewardsFile":
        import pyarrow as pa
        import pyarrow.parquet as pq

        reward = [("scorer", pa.string()), ("value", pa.float64()), ("reason", pa.string())]
        self._schema = pa.schema(
            [
                *((name, pa.string()) for name in NAMES),
                ("attempt", pa.int32()),
                ("scoring_id", pa.string()),
                ("total", pa.float64()),
                ("reason", pa.string()),
                ("rewards", pa.list_(pa.struct([*reward, ("weight", pa.float64())]))),
                ("source_topic", pa.string()),
                ("source_partition", pa.int32()),
                ("source_offset", pa.int64()),
            ]
        )
        self._table = pa.Table
        hidden = self._ends.enter_context(appearing(self.path))
        self._writer = self._ends.enter_context(pq.ParquetWriter(hidden, self._schema))
        self._ends.push(self._finish)
        return self

    def take(self, scored: ScoredTrajectory) -> None:
        trajectory, request = scored.trajectory, scored.trajectory.request
        self._rows.append(
            {
                "rollout_id": trajectory.rollout_id,
                "run_id": request.run_id if request else None,
                "policy_id": request.policy_id if request else None,
                "group_id": request.group_id if request else None,
                "attempt": trajectory.attempt,
                "scoring_id": scored.scoring_id,
                "total": scored.total,
                "reason": scored.reason,
                "rewards": [asdict(reward) for reward in scored.rewards],
                "source_topic": scored.source_topic,
                "source_partition": scored.source_partition,
                "source_offset": scored.source_offset,
            }
        )
        if len(self._rows) >= ROWS:
            self._write()

    def _write(self) -> None:
        self._writer.write_table(self._table.from_pylist(self._rows, self._schema))
        self._rows.clear()

    def _finish(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self._write()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ends.__exit__(kind, error, trace)


def show(found: Rescored, terminal: Console) -> None:
    """What was judged, what got no reward, and the comparison."""
    where = f"written to {found.to}" if found.to else "nothing written: --dry-run"
    lines = [
        f"{found.rewarded:,} of {found.trajectories:,} trajectories rewarded under scoring id "
        f"{found.scoring_id}, {where}; {found.unfinished:,} rollouts had not finished"
    ]
    if found.failed:
        lines += [f"{found.failed:,} got no reward from the scorer:"]
        lines += [f"  {each.rollout_id}  {each.reason}" for each in found.first_failed]
        lines += [f"  and {found.failed - LISTED:,} more"] if found.failed > LISTED else []
    if not found.agreements:
        lines += ["no scoring was there to compare with"]
    for line in lines:
        terminal.print(Text(line), soft_wrap=True)
    if found.agreements:
        terminal.print(_table(found.agreements))
    for agreement in found.agreements:
        for line in _remarks(agreement, found):
            terminal.print(Text(line), soft_wrap=True)


def _table(agreements: Sequence[Agreement]) -> Table:
    """What was compared, a column for each scoring that was there."""
    table = Table("compared with", *(each.scoring_id for each in agreements))
    for column in table.columns[1:]:
        column.justify = "right"
    for name, count in COUNTS.items():
        table.add_row(name, *(f"{getattr(each, count):,}" for each in agreements))
    table.add_row("mean difference", *(f"{each.mean_difference:+.6g}" for each in agreements))
    return table


def _remarks(agreement: Agreement, found: Rescored) -> Iterator[str]:
    if agreement.scoring_id == found.scoring_id:
        yield f"{agreement.scoring_id} was there before: its first rewards are those that count"
    if agreement.flips:
        yield f"flipped against {agreement.scoring_id}, the first of them:"
    for flip in agreement.flips:
        yield f"  {flip.rollout_id}  {flip.old:+.3f} -> {flip.new:+.3f}"
