"""`rollcall images`: the images of boxes on this host."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from rollcall.compose.console import safe
from rollcall.compose.terminal import one_line, say

if TYPE_CHECKING:
    from rich.console import Console

    from rollcall.sandbox.boxes.image_rows import ImageRow
    from rollcall.sandbox.boxes.image_store import BuiltImage

Name = Annotated[
    str, typer.Argument(help="`base` (Debian with python3, git, pytest), or a name of your own.")
]
With = Annotated[
    list[str] | None,
    typer.Option("--with", help="A package of the index, such as six==1.16.0; repeatable."),
]
Requirements = Annotated[
    Path | None, typer.Option(help="A file of packages, such as the lock of another image.")
]
Base = Annotated[str, typer.Option("--from", help="The image to which packages are added.")]
Keep = Annotated[str, typer.Option(help="The most disk space for images, such as 5GB.")]
OlderThan = Annotated[str, typer.Option(help="Remove images unused for this time, such as 14d.")]
Json = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


def build(
    name: Name, with_: With = None, requirements: Requirements = None, base: Base = "base"
) -> None:
    """Build an image if it is missing: `base` (needs root), or one that adds packages to another.

    `base` takes a minute and 400 MB. Packages are installed as wheels from pip's index and locked
    by their digests; none of their code is run.

    Example: rollcall images build numbers --with numpy==2.2.1
    """
    from rollcall.compose.extras import require
    from rollcall.sandbox.boxes.base_image import BASE, build_base
    from rollcall.sandbox.boxes.package_layers import build_packages, lock_place
    from rollcall.schemas.errors import Refused

    require("packaging")
    asked = _requirements(with_ or [], requirements)
    if bool(asked) == (name == BASE):
        msg = f"image {name!r} needs packages; name them with --with or --requirements"
        if name == BASE:
            msg = "image 'base' has no packages; give an image with packages another name"
        raise Refused(msg)
    image = build_packages(name, base, asked) if asked else build_base()
    size = megabytes(image.size_bytes)
    say(f"{image.name} {image.digest[:12]}  {size}  {image.place}")
    if asked:
        say(f"with {' '.join(image.packages)}\nlocked in {lock_place(image)}")


def list_images(json: Json = False) -> None:
    """List the images: their size, the images built on them, and their last use.

    Images of the docker engine are included if one is running.

    Example: rollcall images list
    """
    from rollcall.compose.terminal import emit
    from rollcall.sandbox.boxes.image_rows import directory_rows
    from rollcall.sandbox.boxes.image_store import directory

    rows = [*directory_rows(), *_of_engine()]
    emit(rows, lambda terminal: print_images(terminal, rows), json=json)
    if not json:
        say(f"in {directory()}")


def gc(keep: Keep = "5GB", older_than: OlderThan = "14d") -> None:
    """Remove images that have not been used for long, and the oldest ones above the limit of size.

    Images used within a day stay, since a box may use them; so do images that others build on.
    Images of a docker engine are not removed.

    Example: rollcall images gc --keep 5GB --older-than 14d
    """
    from pydantic import ByteSize, TypeAdapter, ValidationError

    from rollcall.consumers.history.reading.times import seconds_of
    from rollcall.sandbox.boxes.image_store import collect
    from rollcall.schemas.errors import Refused

    try:
        keep_bytes = int(TypeAdapter(ByteSize).validate_python(keep))
    except ValidationError as error:
        msg = f"--keep {keep!r} is no size such as 5GB"
        raise Refused(msg) from error
    removed, in_use = collect(keep_bytes, seconds_of(older_than))
    for image in removed:
        say(f"removed {_called(image)}  {megabytes(image.size_bytes)}")
    for image in in_use:
        say(f"kept {_called(image)}: it was used within a day")
    if not removed and not in_use:
        say("nothing to remove")


def _requirements(given: list[str], file: Path | None) -> list[str]:
    """Return all requirements, each validated. Raises Refused."""
    from rollcall.sandbox.boxes.wheels import checked, requirement_lines
    from rollcall.schemas.errors import Refused

    asked = [checked(each, "--with") for each in given]
    if file is None:
        return asked
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        msg = f"--requirements {file} cannot be read: {error}"
        raise Refused(msg) from error
    if not (lines := requirement_lines(text, str(file))):
        msg = f"--requirements {file} names no packages"
        raise Refused(msg)
    return [*asked, *lines]


def _of_engine() -> "list[ImageRow]":
    """Return the engine's images; if it does not answer, print that and return none."""
    import asyncio

    from rollcall.sandbox.boxes.docker_engine import DockerEngine, listens
    from rollcall.sandbox.boxes.image_rows import engine_rows
    from rollcall.schemas.errors import WorkFailed

    try:
        return asyncio.run(DockerEngine().ask(engine_rows)) if listens() else []
    except WorkFailed as error:
        say(f"images of an engine are left out: {error}", err=True)
        return []


def _called(image: "BuiltImage") -> str:
    from rollcall.sandbox.boxes.image_store import LAYERS

    return f"layer {image.name}" if image.place.parent.name == LAYERS else image.name


SHOWN = 12
"""The number of digits of a digest that are shown."""
MOST_PACKAGES = 5
KINDS = {"directory": "image", "layer": "layer", "engine": "docker"}


def print_images(terminal: "Console", rows: "Sequence[ImageRow]") -> None:
    """Print a line per image, those of an engine last."""
    heads = "kind", "name", "digest", "own size", "last used", "stands on", "used by", "packages"
    table = Table(*heads, box=None, pad_edge=False)
    table.columns[3].justify = "right"
    table.add_row("host", "host", "", "", "", "", "", "the programs of this host, read-only")
    for row in rows:
        table.add_row(
            KINDS[row.kind],
            safe(one_line(row.name)),
            row.digest[:SHOWN],
            megabytes(row.size_bytes),
            "" if row.idle_s is None else f"{row.idle_s / 3600:.1f} h ago",
            row.base,
            safe(one_line(", ".join(row.users))),
            _packages(row.packages),
        )
    terminal.print(table)


def _packages(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_PACKAGES} more" if len(names) > MOST_PACKAGES else ""
    return " ".join(names[:MOST_PACKAGES]) + more


def megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.0f} MB"
