"""Checkpoints: a directory per version that is there whole or not at all.

The law: shards first, each flushed and with its sha256, then the manifest under a temporary name,
then one rename. A directory without a manifest is no checkpoint. Loading verifies every digest,
the manifest's own too, and passes over what is incomplete or damaged with a reason. Nothing in a
checkpoint is ever unpickled: shards are safetensors, the manifest is JSON.

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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from schemas.errors import Refused, RollcallError, WeightsDiffer
from schemas.messages import Consumed, WeightsFile
from schemas.weights import RawTensor, read_weights, write_weights
from schemas.whole_files import appear_durably, to_disk
from trainer.accounts import Book
from trainer.drops import Tally
from trainer.replay import ReplayBook
from trainer.step import LearnerState

FORMAT = 1
MANIFEST = "manifest.json"
SHARDS = ("weights", "optimiser", "rng")
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


def save(root: str | Path, checkpoint: Checkpoint) -> Path:
    """Write `root/v<version>`; it is durable when this returns. A half-written one is replaced."""
    directory = Path(root) / f"v{checkpoint.version:08d}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    shards = {name: _write_shard(directory, checkpoint, name) for name in SHARDS}
    body = _body(checkpoint) | {"shards": shards}
    sha256 = hashlib.sha256(orjson.dumps(body)).hexdigest()
    hidden = directory / f"{MANIFEST}.tmp"
    hidden.write_bytes(orjson.dumps({"sha256": sha256, "body": body}))
    to_disk(directory)
    appear_durably(hidden, directory / MANIFEST)
    to_disk(Path(root))
    return directory


def load_latest(root: str | Path) -> LatestCheckpoint:
    """The newest checkpoint whose every digest agrees."""
    passed_over: list[str] = []
    for directory in _newest_first(Path(root)):
        try:
            return LatestCheckpoint(load(directory), directory, tuple(passed_over))
        except (RollcallError, OSError, ValueError, KeyError, TypeError) as error:
            passed_over.append(f"{directory.name}: {type(error).__name__}: {error}")
    return LatestCheckpoint(None, None, tuple(passed_over))


def load(directory: Path) -> Checkpoint:
    """One checkpoint, verified; raises FileNotFoundError where there is no manifest."""
    manifest = orjson.loads((directory / MANIFEST).read_bytes())
    body = manifest["body"]
    sha256 = hashlib.sha256(orjson.dumps(body)).hexdigest()
    if sha256 != manifest["sha256"] or body["format"] != FORMAT:
        msg = (
            f"{directory / MANIFEST} has sha256 {sha256[:16]} and format {body['format']}; "
            f"expected {manifest['sha256'][:16]} and format {FORMAT}"
        )
        raise WeightsDiffer(msg)
    shards = {name: _read_shard(directory, body["shards"][name]) for name in SHARDS}
    return Checkpoint(
        LearnerState(body["step"], body["version"], body["skipped"], **shards),
        body["parent"],
        body["config_digest"],
        _marks_of(body["consumed"]),
        tuple(body["recent"]),
        {reason: Tally(*tally) for reason, tally in body["drops"].items()},
        tuple((first, last) for first, last in body["abandoned"]),
        {name: base64.b64decode(data) for name, data in body["pending"].items()},
        body["used"],
        _book_of(body["book"]) if body.get("book") else None,
        _replay_of(body.get("replay", {})),
    )


def kept(root: str | Path) -> dict[int, Path]:
    """What is there with a manifest, by version, oldest first; not verified."""
    whole = [path for path in reversed(_newest_first(Path(root))) if (path / MANIFEST).exists()]
    return {int(path.name.removeprefix("v")): path for path in whole}


def require_recipe(path: Path, config_digest: str, remedy: str) -> None:
    """Raise Refused where a checkpoint was made by a learner of another configuration."""
    made_with = orjson.loads((path / MANIFEST).read_bytes())["body"]["config_digest"]
    if made_with != config_digest:
        msg = (
            f"checkpoint {path.name} was made with the learner configuration "
            f"{made_with[:16] or 'unknown'}, but the recipe gives {config_digest[:16]}; {remedy}"
        )
        raise Refused(msg)


def prune(root: str | Path, keep: int, every: int = 0) -> tuple[Path, ...]:
    """Delete all but the newest `keep` checkpoints, the first, and one in every `every` versions.

    With 0 none stays for good, the first neither. What is no checkpoint and older than the newest
    goes too. The manifest goes first: a deletion cut short leaves a directory that is none. Keep
    two or more, so that a damaged one costs a step and not the run.
    """
    whole = kept(root)
    newest = list(whole)[-max(keep, 1) :]
    if not newest:
        return ()
    staying = {whole[version] for version in _lasting(whole, every)}
    older = [path for path in _newest_first(Path(root)) if path.name < whole[newest[0]].name]
    gone = [path for path in older if path not in staying]
    for directory in gone:
        (directory / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(directory)
    return tuple(gone)


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
        "world_size": 1,
        "consumed": [dataclasses.asdict(mark) for mark in checkpoint.consumed],
        "recent": checkpoint.recent,
        "drops": {reason: (t.count, t.length) for reason, t in checkpoint.drops.items()},
        "abandoned": checkpoint.abandoned,
        "used": checkpoint.used,
        "pending": {n: base64.b64encode(data).decode() for n, data in checkpoint.pending.items()},
        "book": _written(checkpoint.book) if checkpoint.book else None,
    } | ({"replay": dataclasses.asdict(checkpoint.replay)} if checkpoint.replay.places() else {})


def _written(book: Book) -> dict[str, Any]:
    """As plain values; what is not in use is left out, for older readers do not know it."""
    written = dataclasses.asdict(book) | {"ended": base64.b64encode(book.ended).decode()}
    for key in ("won", "sizes", "begun", "continued"):
        if not written[key]:
            del written[key]
    return written


def _book_of(written: Mapping[str, Any]) -> Book:
    return Book(
        **{
            **written,
            "ended": base64.b64decode(written["ended"]),
            "left": tuple(written["left"]),
            "won": tuple(written.get("won", ())),
            "continued": tuple(map(tuple, written.get("continued", ()))),
            "asked": _marks_of(written["asked"]),
            "sizes": tuple((draw, size) for draw, size in written.get("sizes", ())),
            "begun": tuple((draw, version) for draw, version in written.get("begun", ())),
        }
    )


def _replay_of(written: Mapping[str, Any]) -> ReplayBook:
    return ReplayBook(
        tuple(
            (uses, tuple((partition, offset) for partition, offset in places))
            for uses, places in written.get("groups", ())
        ),
        tuple((uses, (place[0], place[1])) for uses, place in written.get("successes", ())),
    )


def _marks_of(written: Iterable[Mapping[str, Any]]) -> tuple[Consumed, ...]:
    return tuple(Consumed(**{**mark, "above": tuple(mark["above"])}) for mark in written)


def _write_shard(directory: Path, checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    tensors: Mapping[str, RawTensor] = getattr(checkpoint.state, name)
    file = write_weights(str(directory / name), checkpoint.version, tensors)
    return dataclasses.asdict(file) | {"uri": f"{name}/{Path(file.uri).name}"}


def _read_shard(directory: Path, entry: Mapping[str, Any]) -> dict[str, RawTensor]:
    file = WeightsFile(**entry)
    return read_weights(dataclasses.replace(file, uri=str(directory / file.uri)))


def _newest_first(root: Path) -> list[Path]:
    return sorted((path for path in root.glob("v*") if path.is_dir()), reverse=True)
