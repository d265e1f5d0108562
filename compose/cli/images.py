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
    str, typer.Argument(help="`base`: a Debian with python3, git and pytest; or one with packages.")
]
With = Annotated[
    list[str] | None,
    typer.Option("--with", help="A package of the index, such as six==1.16.0; may be repeated."),
]
Requirements = Annotated[
    Path | None, typer.Option(help="A file of packages, such as the lock of another image.")
]
Base = Annotated[str, typer.Option("--from", help="The image that packages are laid upon.")]
Keep = Annotated[str, typer.Option(help="So much may stay, such as 5GB.")]
OlderThan = Annotated[str, typer.Option(help="What was not used for so long goes, such as 14d.")]
Json = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


def build(
    name: Name, with_: With = None, requirements: Requirements = None, base: Base = "base"
) -> None:
    """Make an image where it is missing: `base`, as root, or one with packages upon another.

    `base` takes a minute and 400 MB. Packages come as wheels from the index that pip is set to, and
    are locked by their digests; nothing of theirs is run.

    Example: rollcall images build numbers --with numpy==2.2.1
    """
    from rollcall.compose.extras import require
    from rollcall.sandbox.boxes.base_image import BASE, build_base
    from rollcall.sandbox.boxes.package_layers import build_packages, lock_place
    from rollcall.schemas.errors import Refused

    require("packaging")
    asked = _requirements(with_ or [], requirements)
    if bool(asked) == (name == BASE):
        msg = f"image {name!r} is made of packages, which --with and --requirements name"
        if name == BASE:
            msg = "image 'base' holds no packages; give an image with packages another name"
        raise Refused(msg)
    image = build_packages(name, base, asked) if asked else build_base()
    size = megabytes(image.size_bytes)
    say(f"{image.name} {image.digest[:12]}  {size}  {image.place}")
    if asked:
        say(f"with {' '.join(image.packages)}\nlocked in {lock_place(image)}")


def list_images(json: Json = False) -> None:
    """Say which images there are, how large, who stands on them, and when each was last used.

    Those of the docker engine are among them where one listens.

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
    """Remove images that were not used for long, and the longest unused of what is too much.

    One that was used within a day may be in a box, and stays; so does what another one stands on.
    Those of an engine are the engine's to remove.

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
