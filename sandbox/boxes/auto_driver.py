"""The default driver: bubblewrap, or docker where only a docker engine has the image.

It never falls back to `local`: where neither can be used it refuses a box and names the remedy.
"""

from collections.abc import Mapping, Sequence

from rollcall.sandbox.boxes.box import Box, Driver, Spec, driver
from rollcall.sandbox.boxes.image_store import is_built
from rollcall.schemas.errors import FailureCode, WorkFailed


class AutoDriver(Driver):
    """A driver that opens each box with one of the two drivers."""

    name = "auto"

    def __init__(self) -> None:
        self._namespaces, self._containers = driver("bubblewrap"), driver("docker")

    def of(self, spec: Spec) -> Driver:
        """Return the driver for a box of this image."""
        if spec.image in ("", "host") or is_built(spec.image):
            return self._namespaces
        return self._containers

    async def open(self, spec: Spec, ident: str = "") -> Box:
        """Open a box. Raises WorkFailed as the driver does, with a hint at `rollcall boxes`."""
        try:
            return await self.of(spec).open(spec, ident)
        except WorkFailed as error:
            if error.code != FailureCode.BOX_UNAVAILABLE:
                raise
            msg = f"{error}; `rollcall boxes --drivers` tells what this host has"
            raise WorkFailed(error.code, msg, retriable=error.retriable) from error

    def enforces(self) -> Mapping[str, str]:
        return self._namespaces.enforces()

    def lacks(self) -> Sequence[str]:
        return self._namespaces.lacks()

    async def unavailable(self) -> str:
        return await self._namespaces.unavailable()

    async def found(self) -> Sequence[str]:
        """Return an empty list: the drivers that made the boxes list them."""
        return []

    async def remove(self, ident: str) -> None:
        for each in (self._namespaces, self._containers):
            await each.remove(ident)
