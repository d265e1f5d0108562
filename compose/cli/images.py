"""`rollcall images`: what boxes are made of, on this host."""

from typing import Annotated

import typer

Name = Annotated[str, typer.Argument(help="`base`: a Debian with python3, git and pytest.")]
Keep = Annotated[str, typer.Option(help="So much may stay, such as 5GB.")]
OlderThan = Annotated[str, typer.Option(help="What was not used for so long goes, such as 14d.")]


def build(name: Name) -> None:
    """Make an image where it is missing, as root; `base` takes a minute and 400 MB.

    Example: rollcall images build base
    """
    from sandbox.boxes.image_store import build_base
    from schemas.errors import Refused

    if name != "base":
        msg = f"no image {name!r} can be built; `base` can"
        raise Refused(msg)
    image = build_base()
    typer.echo(f"{image.name} {image.digest[:12]}  {_megabytes(image.size_bytes)}  {image.place}")


def list_images() -> None:
    """Say which images there are, how large, and when each was last used.

    Example: rollcall images list
    """
    from sandbox.boxes.image_store import directory, images

    typer.echo("host  the programs of this host, read-only")
    for image in images():
        hours = image.idle_s() / 3600
        size = _megabytes(image.size_bytes)
        typer.echo(f"{image.name}  {image.digest[:12]}  {size}  used {hours:.1f} h ago")
    typer.echo(f"in {directory()}")


def gc(keep: Keep = "5GB", older_than: OlderThan = "14d") -> None:
    """Remove images that were not used for long, and the longest unused of what is too much.

    One that was used within a day may be in a box, and stays.

    Example: rollcall images gc --keep 5GB --older-than 14d
    """
    from pydantic import ByteSize, TypeAdapter, ValidationError

    from consumers.history.times import seconds_of
    from sandbox.boxes.image_store import collect
    from schemas.errors import Refused

    try:
        keep_bytes = int(TypeAdapter(ByteSize).validate_python(keep))
    except ValidationError as error:
        msg = f"--keep {keep!r} is no size such as 5GB"
        raise Refused(msg) from error
    removed, in_use = collect(keep_bytes, seconds_of(older_than))
    for image in removed:
        typer.echo(f"removed {image.name}  {_megabytes(image.size_bytes)}")
    for image in in_use:
        typer.echo(f"kept {image.name}: it was used within a day")
    if not removed and not in_use:
        typer.echo("nothing to remove")


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.0f} MB"
