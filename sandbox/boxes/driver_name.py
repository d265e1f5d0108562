"""The type of a driver's name in settings."""

from typing import Annotated

from pydantic import AfterValidator

from rollcall.sandbox.boxes.box import check_box
from rollcall.schemas.errors import Refused


def _known(name: str) -> str:
    """Return a known name; raise ValueError, as pydantic expects, for others."""
    try:
        return check_box(name)
    except Refused as error:
        raise ValueError(str(error)) from error


DriverName = Annotated[str, AfterValidator(_known)]
