"""A list of all images on this host, and the disk space that each takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rollcall.sandbox.boxes.image_store import BuiltImage, images, layers, users

Kind = Literal["directory", "layer", "engine"]


@dataclass(frozen=True, slots=True)
class ImageRow:
    """One image, or one layer that images share."""

    kind: Kind
    name: str
    digest: str
    size_bytes: int
    """Its own size: shared files are counted at their owner."""
    made_ms: int
    idle_s: float | None = None
    """Seconds since its last use; None for an engine's images, where it is unknown."""
    base: str = ""
    packages: Sequence[str] = ()
    users: Sequence[str] = ()
    """The images that are based on it; for an engine's image, its containers."""


def directory_rows() -> list[ImageRow]:
    """Return the images that are directories, and their layers."""
    known = images()
    return [
        *(_row("directory", each, known) for each in known),
        *(_row("layer", each, known) for each in layers()),
    ]


def engine_rows(client: Any) -> list[ImageRow]:
    """Return the images of an engine. Raises exceptions of the library `docker`."""
    made_of: dict[str, list[str]] = {}
    for container in client.api.containers(all=True):
        made_of.setdefault(container["ImageID"], []).append(container["Names"][0].lstrip("/"))
    return [_engine_row(image, made_of) for image in client.df()["Images"] or ()]


def _row(kind: Kind, image: BuiltImage, known: Sequence[BuiltImage]) -> ImageRow:
    return ImageRow(
        kind,
        image.name,
        image.digest,
        image.size_bytes,
        image.made_ms,
        round(image.idle_s(), 1),
        image.base,
        image.packages,
        users(image, known),
    )


def _engine_row(image: Mapping[str, Any], made_of: Mapping[str, list[str]]) -> ImageRow:
    names = [*(image["RepoTags"] or ()), *(image["RepoDigests"] or ()), "<none>"]
    return ImageRow(
        "engine",
        names[0],
        image["Id"].removeprefix("sha256:"),
        max(0, image["Size"] - max(0, image["SharedSize"])),
        int(image["Created"]) * 1000,
        users=sorted(made_of.get(image["Id"], ())),
    )
