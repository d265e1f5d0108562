"""The driver of whoever names none: bubblewrap, or docker where only an engine has the image.

`local` is never taken unasked: where neither can be had a box is refused, with the remedy.
"""

from collections.abc import Mapping, Sequence

from sandbox.boxes.box import Box, Driver, Spec, driver
from sandbox.boxes.image_store import is_built
from schemas.errors import WorkFailed


class AutoDriver(Driver):
    """Opens boxes of one of the two."""

    name = "auto"

    def __init__(self) -> None:
        self._namespaces, self._containers = driver("bubblewrap"), driver("docker")

    def of(self, spec: Spec) -> Driver:
        """The one for a box of this image."""
        if spec.image in ("", "host") or is_built(spec.image):
            return self._namespaces
        return self._containers

    async def open(self, spec: Spec, ident: str = "") -> Box:
        """Raises WorkFailed as the driver does, and says how to see what there is."""
        try:
            return await self.of(spec).open(spec, ident)
        except WorkFailed as error:
            if error.code != "box_unavailable":
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
        """None: its boxes are found by the drivers that made them."""
        return []

    async def remove(self, ident: str) -> None:
        for each in (self._namespaces, self._containers):
            await each.remove(ident)
