"""Images that a docker engine builds from a Dockerfile on demand, and only once, since the name of
an image is derived from its sources. Failures are cached for a while under that name, so that the
same failure is reported at once; a changed Dockerfile has another name.
"""

import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from rollcall.sandbox.boxes.base_image import BUILD_LINES
from rollcall.sandbox.boxes.box import ImageBuild
from rollcall.sandbox.boxes.disk_floor import make_room
from rollcall.schemas.errors import FailureCode, Refused, WorkFailed
from rollcall.schemas.untrusted_text import REASON_CHARS, clean_text

LABEL = "rollcall.image"
LINE_CHARS = 300

log = structlog.get_logger()


KEPT = 64
AGAIN_S = 300.0
"""Seconds after which an image is built again: what was missing may exist by then."""


class FailedBuilds:
    """The last `KEPT` failed builds of one driver."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, tuple[float, str]] = OrderedDict()

    def add(self, name: str, why: str) -> WorkFailed:
        """Record a failed build; return the error for its caller."""
        self._failed[name] = self._clock(), why
        self._failed.move_to_end(name)
        while len(self._failed) > KEPT:
            self._failed.popitem(last=False)
        return WorkFailed(FailureCode.IMAGE, why, retriable=False)

    def check(self, name: str) -> None:
        """Raise the build's WorkFailed(`image`) again if it is too early to retry."""
        at, why = self._failed.get(name, (0.0, ""))
        if not why:
            return
        ago_s = self._clock() - at
        if ago_s >= AGAIN_S:
            del self._failed[name]
            return
        first, _, rest = why.partition("\n")
        first += f" ({ago_s:.0f} s ago; it is built again in {AGAIN_S - ago_s:.0f} s)"
        raise WorkFailed(FailureCode.IMAGE, f"{first}\n{rest}", retriable=False)


def engine_build(client: Any, name: str, build: ImageBuild, failed: FailedBuilds) -> None:
    """Build an image if the engine lacks it; blocks, so call it on a thread.

    Raises WorkFailed(`image`) with the last lines of a build that fails, or failed lately, and the
    exceptions of the library `docker` if the engine is unreachable.
    """
    if client.images.list(name):
        return
    failed.check(name)
    _make_room(client)
    began = time.monotonic()
    lines = deque[str](maxlen=BUILD_LINES)
    try:
        for said in _said(client, name, build):
            lines.extend(said.splitlines())
            if time.monotonic() - began > build.timeout_s:
                lines.append(f"it takes more than {build.timeout_s:g} s")
                break
        else:
            if client.images.list(name):
                log.info("image_built", image=name, took_s=time.monotonic() - began)
                return
    except Exception as error:
        if not hasattr(error, "explanation"):  # not an answer of the engine
            raise
        lines.append(str(error.explanation or error))
    last = [clean_text(line, LINE_CHARS) for line in lines if line.strip()] or ["it says nothing"]
    msg = f"image {name!r} cannot be built: {last[-1]}\n"  # this first line is shown everywhere
    msg += f"{clean_text(build.directory, LINE_CHARS)}/Dockerfile ended with:\n"
    msg += "\n".join(last)[-(REASON_CHARS - len(msg)) :]
    log.warning("image_not_built", image=name, reason=last[-1], took_s=time.monotonic() - began)
    raise failed.add(name, msg)


def _said(client: Any, name: str, build: ImageBuild) -> Iterable[str]:
    parts: Iterable[Mapping[str, Any]] = client.api.build(
        path=build.directory,
        tag=name,
        rm=True,
        forcerm=True,
        decode=True,
        labels={LABEL: name},
        timeout=build.timeout_s,
    )
    for part in parts:
        yield str(part.get("stream") or part.get("error") or "")


def _make_room(client: Any) -> None:
    """Remove our images that no container uses, while the engine's disk is below its floor.

    The oldest are removed first. Raises WorkFailed(`image`).
    """
    place = str(client.info().get("DockerRootDir", ""))
    if not os.path.isdir(place):
        return
    images = client.images.list(filters={"label": LABEL})
    oldest = sorted(images, key=lambda each: str(each.attrs.get("Created", "")))
    try:
        make_room(
            Path(place),
            [partial(_remove, client, image.id) for image in oldest],
            "; `docker image prune` makes room",
        )
    except Refused as error:
        raise WorkFailed(FailureCode.IMAGE, str(error), retriable=False) from error


def _remove(client: Any, ident: str) -> None:
    try:
        client.images.remove(ident)
    except Exception as error:
        if not hasattr(error, "explanation"):  # a container uses it
            raise
