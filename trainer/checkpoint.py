"""Checkpoints: a directory per version that is there whole or not at all.

The law: files of parts first, one of each kind for each rank, flushed and named by their content,
then the manifest under a temporary name, then one rename. A directory without a manifest is no
checkpoint, and one that is written again is the old one until the rename. Loading verifies every
digest, the manifest's own too, and passes over what is incomplete or damaged with a reason. Nothing
in a checkpoint is ever unpickled: tensors are safetensors, the manifest is JSON.

The manifest lists of every tensor its parts (`trainer.shards`), so that any number of ranks loads
what another number wrote. Ranks are plain numbers here: who runs them carries `RankFiles` from each
to the one that seals. Formats 1, of one rank and whole tensors, and 2, where every digest is a
sha256, are still read.

`pending` holds the records that announce this version. Between the save and the announcement lies
a crash that loses them; whoever loads the checkpoint publishes them again, bytes unchanged.

Which checkpoints stay is `prune`'s policy: the newest to go on from, some older ones to train again
from the record.

A version number is never used twice: after a restart numbering goes on above the highest that was
announced, and announced versions above the checkpoint belong to an abandoned branch.
"""

import base64
import dataclasses
import hashlib
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas.errors import Refused, RollcallError, WeightsDiffer
from schemas.messages import Consumed
from schemas.whole_files import to_disk
from trainer.book import Book
from trainer.consumption import Leader
from trainer.drops import Tally
from trainer.learner_state import LearnerState
from trainer.manifest import (
    MANIFEST,
    book_of,
    marks_of,
    read_body,
    replay_of,
    write_body,
    written_book,
    written_files,
    written_tensors,
)
from trainer.rank_files import (
    KINDS,
    PublishedFile,
    RankFiles,
    directory_of,
    parts_of_state,
    read_rank,
    write_rank,
)
from trainer.replay import ReplayBook
from trainer.shards import merged, rows_of

FORMAT = 3
FORMATS = (1, 2, FORMAT)
NEWEST = 3
"""So many checkpoints training may go on from, the next where the one before is damaged."""
UNREADABLE = (RollcallError, OSError, ValueError, KeyError, TypeError)
"""What reading a checkpoint raises that is damaged."""
CHANGED = "put [learner] and seed of the run's recipe back as they were, or begin a new run"
Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All that a trainer needs to go on as if nothing had happened."""

    state: LearnerState
    parent: int
    """The version that this one was made from; -1 for the first."""
    config_digest: str = ""
    consumed: tuple[Consumed, ...] = ()
    recent: tuple[str, ...] = ()
    """Names of what is gone for good: `Buffer.recent()`, and for old readers `Accounts.left()`."""
    drops: Mapping[str, Tally] = field(default_factory=dict)
    abandoned: Ranges = ()
    """Versions, both ends included, that were announced and that nothing descends from."""
    pending: Mapping[str, bytes] = field(default_factory=dict)
    """Encoded records of this step by a name of the caller's, to be published again."""
    used: int = 0
    """Trajectories trained on so far."""
    book: Book | None = None
    """`Accounts.book()`; None in checkpoints of the releases before it."""
    replay: ReplayBook = field(default_factory=ReplayBook)
    """What was used and may be used again."""
    leaders: tuple[Leader, ...] = ()
    """Of what `consumed` and the book's `asked` count; none in checkpoints of earlier releases."""

    @property
    def version(self) -> int:
        return self.state.version


@dataclass(frozen=True, slots=True)
class LatestCheckpoint:
    """What a search for the latest checkpoint came to."""

    checkpoint: Checkpoint | None
    path: Path | None
    passed_over: tuple[str, ...]
    """Newer directories that are no checkpoint, each with the reason."""


def save(root: str | Path, checkpoint: Checkpoint, published: PublishedFile | None = None) -> Path:
    """Write `root/v<version>` as the only process; it is durable when this returns.

    A published file of these weights is linked, not written again, nor hashed where that was done.
    """
    written = write_rank(root, parts_of_state(checkpoint.state), published)
    return seal(root, checkpoint, [written])


def seal(root: str | Path, checkpoint: Checkpoint, written: Sequence[RankFiles]) -> Path:
    """Make a checkpoint of what all ranks have written, in their order; what was there is replaced.

    Of the checkpoint's state the tensors are not looked at. Raises Refused for no ranks, and
    WeightsDiffer where a part of a tensor is missing: then all is as it was before.
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
    to_disk(directory)
    write_body(directory, body)
    to_disk(Path(root))
    _clear(directory, named)
    return directory


def load_latest(root: str | Path, rank: int = 0, world: int = 1) -> LatestCheckpoint:
    """The newest checkpoint whose every digest agrees, with what is one rank's."""
    passed_over: list[str] = []
    for directory in _newest_first(Path(root)):
        try:
            return LatestCheckpoint(load(directory, rank, world), directory, tuple(passed_over))
        except UNREADABLE as error:
            passed_over.append(f"{directory.name}: {type(error).__name__}: {error}")
    return LatestCheckpoint(None, None, tuple(passed_over))


def load(directory: Path, rank: int = 0, world: int = 1) -> Checkpoint:
    """One checkpoint, verified, with what one rank of so many has of its tensors.

    It may have been written by any other number of ranks. Raises FileNotFoundError where there is
    no manifest.
    """
    body = read_body(directory)
    if body["format"] not in FORMATS:
        msg = f"{directory / MANIFEST} has format {body['format']}; known are 1 to 3"
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
        book_of(body["book"]) if body.get("book") else None,
        replay_of(body.get("replay", {})),
        tuple(Leader(*leader) for leader in body.get("leaders", ())),
    )


def kept(root: str | Path) -> dict[int, Path]:
    """What is there with a manifest, by version, oldest first; not verified."""
    whole = [path for path in reversed(_newest_first(Path(root))) if (path / MANIFEST).exists()]
    return {int(path.name.removeprefix("v")): path for path in whole}


def needed_by_newest(
    root: str | Path, scoring_versions: Callable[[int], Iterable[int]]
) -> set[int]:
    """Versions whose weights a trainer needs that goes on from one of the newest checkpoints."""
    newest = list(kept(root))[-NEWEST:]
    return {*newest, *(needed for version in newest for needed in scoring_versions(version))}


def newest_words(root: str | Path) -> str:
    """What tells the newest checkpoint from any other, not verified; `none` where there is none."""
    path = next(reversed(kept(root).values()), None)
    if path is None:
        return "none"
    try:
        word = hashlib.sha256((path / MANIFEST).read_bytes()).hexdigest()[:16]
    except OSError as error:
        word = type(error).__name__
    return f"{path.name} ({word})"


def require_recipe(path: Path, config_digest: str, remedy: str) -> None:
    """Raise Refused where a checkpoint was made by a learner of another configuration."""
    made_with = read_body(path)["config_digest"]
    if made_with != config_digest:
        msg = (
            f"checkpoint {path.name} was made with the learner configuration "
            f"{made_with[:16] or 'unknown'}, but the recipe gives {config_digest[:16]}; {remedy}"
        )
        raise Refused(msg)


def prune(root: str | Path, keep: int, every: int = 0) -> tuple[Path, ...]:
    """Delete all but the newest `keep` checkpoints, the first, and one in every `every` versions.

    With 0 none stays for good, the first neither. What is no checkpoint and older than the newest
    goes too. Keep two or more, so that a damaged one costs a step and not the run.
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
    """Delete one checkpoint: the manifest first, so that a deletion cut short leaves none."""
    (directory / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(directory)


def _lasting(versions: Iterable[int], every: int) -> set[int]:
    """The first, and each that lies `every` or more above the last one chosen."""
    chosen: list[int] = []
    for version in sorted(versions) if every else ():
        if not chosen or version >= chosen[-1] + every:
            chosen.append(version)
    return set(chosen)


def next_version(highest_announced: int, held: int = -1) -> int:
    """A number that nobody has used: above all that were announced and above our own."""
    return max(highest_announced, held) + 1


def abandon(abandoned: Ranges, held: int, highest_announced: int) -> Ranges:
    """The ranges after a restart from version `held`: what was announced above it is abandoned."""
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
        "book": written_book(checkpoint.book) if checkpoint.book else None,
        "leaders": [tuple(leader) for leader in checkpoint.leaders],
    } | (
        {"replay": dataclasses.asdict(checkpoint.replay)}
        if checkpoint.replay != ReplayBook()
        else {}
    )


def _clear(directory: Path, files: Iterable[str]) -> None:
    """Remove what no manifest names: of an earlier one, or of a crash."""
    for path in directory.iterdir():
        if path.name not in {MANIFEST, *files}:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _newest_first(root: Path) -> list[Path]:
    return sorted((path for path in root.glob("v*") if path.is_dir()), reverse=True)
