"""The name of a driver where it stands in a table of settings."""

from typing import Annotated

from pydantic import AfterValidator

from sandbox.boxes.box import check_box
from schemas.errors import Refused


def _known(name: str) -> str:
    """As pydantic wants to be told."""
    try:
        return check_box(name)
    except Refused as error:
        raise ValueError(str(error)) from error


DriverName = Annotated[str, AfterValidator(_known)]
