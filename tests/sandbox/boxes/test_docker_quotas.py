"""Requests to an engine for a box with a writable image, with and without disk quotas."""

from types import SimpleNamespace
from typing import Any

import pytest

from rollcall.sandbox.boxes.box import BoxLimits, Spec
from rollcall.sandbox.boxes.docker_driver import DockerDriver, _created

IMAGE_BYTES, DISK_BYTES = 5_000, 700
WRITABLE = Spec(writable=("/testbed",), limits=BoxLimits(disk_bytes=DISK_BYTES))
REFUSALS = (
    "--storage-opt is supported only for overlay over xfs with 'pquota' mount option",
    "--storage-opt is not supported for vfs",
)
"""Error messages of engines without quotas."""


class Engine:
    """The part of the library `docker` that creates containers, with an engine's refusals."""

    def __init__(self, *refusals: str) -> None:
        self.refusals = list(refusals)
        self.asked: list[dict[str, Any]] = []
        self.containers = SimpleNamespace(create=self.create)
        self.images = SimpleNamespace(get=self.get)

    def get(self, image: str) -> SimpleNamespace:
        assert image == "an image"
        return SimpleNamespace(attrs={"Size": IMAGE_BYTES})

    def create(self, **options: Any) -> str:
        self.asked.append(options)
        if self.refusals:
            raise RuntimeError(self.refusals.pop())
        return "a container"


def test_engine_with_quotas_limits_writes_to_the_image() -> None:
    engine = Engine()

    assert _created(engine, WRITABLE, image="an image", name="x") == "a container"

    quota = {"size": str(IMAGE_BYTES + DISK_BYTES)}
    assert engine.asked == [{"image": "an image", "name": "x", "storage_opt": quota}]


@pytest.mark.parametrize("refusal", REFUSALS)
def test_engine_without_quotas_still_opens_the_box(refusal: str) -> None:
    engine = Engine(refusal)

    assert _created(engine, WRITABLE, image="an image") == "a container"

    assert engine.asked[-1] == {"image": "an image"}


def test_other_engine_errors_are_raised_without_retry() -> None:
    engine = Engine("no space left on device")

    with pytest.raises(RuntimeError, match="no space left"):
        _created(engine, WRITABLE, image="an image")
    assert len(engine.asked) == 1


@pytest.mark.parametrize(
    "spec", [Spec(), Spec(writable=("/testbed",), limits=BoxLimits(disk_bytes=0))]
)
def test_no_quota_is_requested_without_writable_paths_or_disk_limit(spec: Spec) -> None:
    engine = Engine()

    _created(engine, spec, image="an image")

    assert engine.asked == [{"image": "an image"}]


def test_docker_driver_claims_only_limits_of_every_engine() -> None:
    driver = DockerDriver()

    assert driver.enforces()["disk"] == "tmpfs of a size"
    assert any(line.startswith("disk: ") for line in driver.lacks())
