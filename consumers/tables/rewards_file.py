"""Rewards as Parquet: one row per trajectory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rollcall.consumers.tables.parquet import TYPES
from rollcall.schemas.atomic_files import atomic_path, require_unused
from rollcall.schemas.messages import ScoredTrajectory
from rollcall.schemas.packed import logprobs_of

FILE = "rewards.parquet"
ROWS_AT_ONCE = 500
TEXT, NUMBER = pa.string(), pa.float64()
REWARD = pa.struct([("scorer", TEXT), ("value", NUMBER), ("reason", TEXT), ("weight", NUMBER)])
SCHEMA = pa.schema([
    ("rollout_id", TEXT), ("run_id", TEXT), ("policy_id", TEXT), ("group_id", TEXT),
    ("attempt", pa.int32()), ("scoring_id", TEXT), ("total", NUMBER), ("reason", TEXT),
    ("rewards", pa.list_(REWARD)), ("source_topic", TEXT), ("source_partition", pa.int32()),
    ("source_offset", pa.int64()), ("token_scores", TYPES["token_scores"]),
])  # fmt: skip


@contextmanager
def rewards_file(directory: Path) -> Iterator[Callable[[ScoredTrajectory], None]]:
    """Yield a function that adds rows to `rewards.parquet`; the file appears once complete.

    Raises Refused if the directory exists and is not empty.
    """
    require_unused(directory, "--parquet")
    directory.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    with atomic_path(directory / FILE) as hidden, pq.ParquetWriter(hidden, SCHEMA) as writer:

        def write() -> None:
            writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
            rows.clear()

        def add(scored: ScoredTrajectory) -> None:
            rows.append(_row(scored))
            if len(rows) >= ROWS_AT_ONCE:
                write()

        yield add
        write()


def _row(scored: ScoredTrajectory) -> dict[str, Any]:
    trajectory, request = scored.trajectory, scored.trajectory.request
    return {
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
        "token_scores": [
            {"scorer": each.scorer, "sequence": each.sequence, "scores": logprobs_of(each.scores)}
            for each in scored.token_scores
        ],
    }
