"""Checkpoints: one directory per version, written atomically.

Files of tensor parts are written first, one per kind and rank, flushed and named by their content;
then the manifest under a temporary name, then one rename. A directory without a manifest is not a
checkpoint, and a rewritten one is the old one until the rename. Loading verifies every digest,
including the manifest's, and skips incomplete or damaged directories with a reason. Nothing in a
checkpoint is ever unpickled: tensors are safetensors, the manifest is JSON.

The manifest lists the parts of every tensor (`rollcall.trainer.checkpoints.shards`), so that any
number of ranks can load a checkpoint of any other number. Ranks are plain numbers here: the caller
carries `RankFiles` from each rank to the one that calls `seal`.

`pending` holds the records that announce this version. A crash between the save and the
announcement would lose them; the process that loads the checkpoint publishes the same bytes again.

`prune` decides which checkpoints are kept: the newest to resume from, and some older ones from
which steps can be reproduced.

A version number is never used twice: after a restart, numbering continues above the highest
announced version, and announced versions above the checkpoint belong to an abandoned branch.
"""

import base64
import dataclasses
import hashlib
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollcall.schemas.atomic_files import sync_to_disk
from rollcall.schemas.errors import Refused, RollcallError, WeightsDiffer
from rollcall.schemas.messages import Consumed
from rollcall.trainer.checkpoints.consumption import Leader
from rollcall.trainer.checkpoints.learner_state import LearnerState
from rollcall.trainer.checkpoints.manifest import (
    MANIFEST,
    ledger_of,
    marks_of,
    read_body,
    replay_of,
    write_body,
    written_files,
    written_ledger,
    written_tensors,
)
from rollcall.trainer.checkpoints.rank_files import (
    KINDS,
    PublishedFile,
    RankFiles,
    directory_of,
    parts_of_state,
    read_rank,
    write_rank,
)
from rollcall.trainer.checkpoints.shards import merged, rows_of
from rollcall.trainer.curation.drawn_groups import LedgerState
from rollcall.trainer.curation.drops import Tally
from rollcall.trainer.curation.replay import ReplayState

FORMAT = 3
NEWEST = 3
"""The number of newest checkpoints to resume from: the next one if a newer one is damaged."""
UNREADABLE = (RollcallError, OSError, ValueError, KeyError, TypeError)
"""Exceptions that reading a damaged checkpoint raises."""
CHANGED = "put [learner] and seed of the run's recipe back as they were, or begin a new run"
Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The complete state that a trainer needs to resume."""

    state: LearnerState
    parent: int
    """The version that this one was made from; -1 for the first."""
    config_digest: str = ""
    consumed: tuple[Consumed, ...] = ()
    recent: tuple[str, ...] = ()
    """Names of ended rollouts and groups that were not drawn: `Buffer.recent()`."""
    drops: Mapping[str, Tally] = field(default_factory=dict)
    abandoned: Ranges = ()
    """Ranges, both ends included, of announced versions that are not on the current branch."""
    pending: Mapping[str, bytes] = field(default_factory=dict)
    """Encoded records of this step, by a name that the caller chooses, to be published again."""
    used: int = 0
    """The number of trajectories trained on so far."""
    book: LedgerState = field(default_factory=LedgerState)
    """`GroupLedger.book()`."""
    replay: ReplayState = field(default_factory=ReplayState)
    """The used samples that may be replayed."""
    leaders: tuple[Leader, ...] = ()
    """Leader epochs at the offsets of `consumed` and `asked`; empty in older checkpoints."""

    @property
    def version(self) -> int:
        return self.state.version


@dataclass(frozen=True, slots=True)
class LatestCheckpoint:
    """The result of a search for the latest checkpoint."""

    checkpoint: Checkpoint | None
    path: Path | None
    passed_over: tuple[str, ...]
    """Newer directories that are not valid checkpoints, each with the reason."""


def save(root: str | Path, checkpoint: Checkpoint, published: PublishedFile | None = None) -> Path:
    """Write `root/v<version>` as the only process; it is durable when this returns.

    A published file of these weights is linked, not written again; known digests are reused.
    """
    written = write_rank(root, parts_of_state(checkpoint.state), published)
    return seal(root, checkpoint, [written])


def seal(root: str | Path, checkpoint: Checkpoint, written: Sequence[RankFiles]) -> Path:
    """Complete a checkpoint from the files of all ranks, in their order; replace an old one.

    The tensors in the checkpoint's state are ignored. Raises Refused for no ranks, and
    WeightsDiffer if a part of a tensor is missing; then nothing has changed.
    """
    rows_of(0, 0, len(written))
    directory = directory_of(root, checkpoint.version)
    files = {kind: [rank.kinds[kind] for rank in written if kind in rank.kinds] for kind in KINDS}
    tensors = {kind: merged(file.tensors for file in files[kind]) for kind in KINDS}
    named = written_files(file for each in files.values() for file in each)
    body = _body(checkpoint) | {
        "world_size": len(written),
        "files": named,
        "tensors": {kind: written_tensors(each) for kind, each in tensors.items()},
    }
    # The names of the files must be durable before a manifest refers to them.
    sync_to_disk(directory)
    write_body(directory, body)
    sync_to_disk(Path(root))
    # Only now: until the rename of the manifest the old checkpoint needs its files.
    _clear(directory, named)
    return directory


def load_latest(root: str | Path, rank: int = 0, world: int = 1) -> LatestCheckpoint:
    """Load the newest checkpoint whose digests all match, with the parts of one rank."""
    passed_over: list[str] = []
    for directory in _newest_first(Path(root)):
        try:
            return LatestCheckpoint(load(directory, rank, world), directory, tuple(passed_over))
        except UNREADABLE as error:
            passed_over.append(f"{directory.name}: {type(error).__name__}: {error}")
    return LatestCheckpoint(None, None, tuple(passed_over))


def load(directory: Path, rank: int = 0, world: int = 1) -> Checkpoint:
    """Load and verify one checkpoint, with the parts of its tensors for one rank of `world`.

    It may have been written by any other number of ranks. Raises FileNotFoundError if there is no
    manifest.
    """
    body = read_body(directory)
    if body["format"] != FORMAT:
        msg = f"{directory / MANIFEST} has format {body['format']}; known is {FORMAT}"
        raise WeightsDiffer(msg)
    return Checkpoint(
        LearnerState(
            body["step"],
            body["version"],
            body["skipped"],
            **read_rank(directory, body, rank, world),
        ),
        body["parent"],
        body["config_digest"],
        marks_of(body["consumed"]),
        tuple(body["recent"]),
        {reason: Tally(*tally) for reason, tally in body["drops"].items()},
        tuple((first, last) for first, last in body["abandoned"]),
        {name: base64.b64decode(data) for name, data in body["pending"].items()},
        body["used"],
        ledger_of(body["book"]),
        replay_of(body.get("replay", {})),
        tuple(Leader(*leader) for leader in body.get("leaders", ())),
    )


def kept(root: str | Path) -> dict[int, Path]:
    """Return the directories with a manifest, by version, oldest first; not verified."""
    whole = [path for path in reversed(_newest_first(Path(root))) if (path / MANIFEST).exists()]
    return {int(path.name.removeprefix("v")): path for path in whole}


def needed_by_newest(
    root: str | Path, scoring_versions: Callable[[int], Iterable[int]]
) -> set[int]:
    """Return the versions whose weights are needed to resume from one of the newest checkpoints."""
    newest = list(kept(root))[-NEWEST:]
    return {*newest, *(needed for version in newest for needed in scoring_versions(version))}


def newest_words(root: str | Path) -> str:
    """Return an identifier of the newest checkpoint, not verified; `none` if there is none."""
    path = next(reversed(kept(root).values()), None)
    if path is None:
        return "none"
    try:
        word = hashlib.sha256((path / MANIFEST).read_bytes()).hexdigest()[:16]
    except OSError as error:
        word = type(error).__name__
    return f"{path.name} ({word})"


def require_recipe(path: Path, config_digest: str, remedy: str) -> None:
    """Raise Refused if a checkpoint was made with another learner configuration."""
    made_with = read_body(path)["config_digest"]
    if made_with != config_digest:
        msg = (
            f"checkpoint {path.name} was made with the learner configuration "
            f"{made_with[:16] or 'unknown'}, but the recipe gives {config_digest[:16]}; {remedy}"
        )
        raise Refused(msg)


def prune(root: str | Path, keep: int, every: int = 0) -> tuple[Path, ...]:
    """Delete all but the newest `keep` checkpoints, the first, and one in every `every` versions.

    With `every` 0 only the newest are kept. Older directories that are not checkpoints are deleted
    too. Keep two or more, so that a damaged checkpoint costs a step and not the run.
    """
    whole = kept(root)
    newest = list(whole)[-max(keep, 1) :]
    if not newest:
        return ()
    staying = {whole[version] for version in _lasting(whole, every)}
    older = [path for path in _newest_first(Path(root)) if path.name < whole[newest[0]].name]
    gone = [path for path in older if path not in staying]
    for directory in gone:
        remove(directory)
    return tuple(gone)


def remove(directory: Path) -> None:
    """Delete one checkpoint: the manifest first, so that an interrupted deletion leaves none."""
    (directory / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(directory)


def _lasting(versions: Iterable[int], every: int) -> set[int]:
    """Return the first version, and each that is `every` or more above the last one chosen."""
    chosen: list[int] = []
    for version in sorted(versions) if every else ():
        if not chosen or version >= chosen[-1] + every:
            chosen.append(version)
    return set(chosen)


def next_version(highest_announced: int, held: int = -1) -> int:
    """Return an unused version number: above all announced ones and above our own."""
    return max(highest_announced, held) + 1


def abandon(abandoned: Ranges, held: int, highest_announced: int) -> Ranges:
    """Add the versions announced above `held` to the abandoned ranges, after a restart from it."""
    if highest_announced <= held:
        return abandoned
    return (*abandoned, (held + 1, highest_announced))


def _body(checkpoint: Checkpoint) -> dict[str, Any]:
    state = checkpoint.state
    return {
        "format": FORMAT,
        "step": state.step,
        "version": state.version,
        "skipped": state.skipped,
        "parent": checkpoint.parent,
        "config_digest": checkpoint.config_digest,
        "consumed": [dataclasses.asdict(mark) for mark in checkpoint.consumed],
        "recent": checkpoint.recent,
        "drops": {reason: (t.count, t.length) for reason, t in checkpoint.drops.items()},
        "abandoned": checkpoint.abandoned,
        "used": checkpoint.used,
        "pending": {n: base64.b64encode(data).decode() for n, data in checkpoint.pending.items()},
        "book": written_ledger(checkpoint.book),
        "leaders": [tuple(leader) for leader in checkpoint.leaders],
    } | (
        {"replay": dataclasses.asdict(checkpoint.replay)}
        if checkpoint.replay != ReplayState()
        else {}
    )


def _clear(directory: Path, files: Iterable[str]) -> None:
    """Remove files that the manifest does not name: of an earlier manifest, or of a crash."""
    for path in directory.iterdir():
        if path.name not in {MANIFEST, *files}:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _newest_first(root: Path) -> list[Path]:
    return sorted((path for path in root.glob("v*") if path.is_dir()), reverse=True)
