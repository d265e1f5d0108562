"""The time of `rollcall up`, with and without a filled cache.

The ceiling is the slower of broker and registry, each started alone, from its process's start to
its first answer: no download, no format, no locks.
"""

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from rollcall.compose.benchmarks.figure import Figure, timed
from rollcall.compose.cluster import answers
from rollcall.compose.processes import end, spawn
from rollcall.compose.services import embedded
from rollcall.compose.services.kafka_broker import KafkaBroker
from rollcall.compose.services.schema_registry import SchemaRegistry
from rollcall.compose.services.service_process import Service, free_port
from rollcall.compose.settings import Settings

TIMES = 3
GRACE_S = 30.0


def up_cold(settings: Settings) -> Figure:
    """Measure a start with an empty cache: everything is downloaded, and a log is formatted."""
    del settings
    with _folder() as (folder, threads):
        cache, state = folder / "cache", folder / "state"
        took = _up(state, cache, threads)
        embedded.down(state, wipe=False)
        files = [path for path in (cache / "maven").rglob("*") if path.suffix in (".jar", ".gz")]
        size = sum(path.stat().st_size for path in files)
        note = f"downloaded {len(files)} files, {size / 1e6:.0f} MB, from Maven's repositories"
        return Figure(took, "s", _alone(state, cache), lower_is_better=True, notes=(note,))


def up_warm(settings: Settings) -> Figure:
    """Measure a start after `down`, with a full cache and an existing log: the median of three."""
    cache = settings.cache()
    with _folder() as (folder, threads):
        state = folder / "state"
        fresh = _up(state, cache, threads)
        took = []
        for _ in range(TIMES):
            embedded.down(state, wipe=False)
            took.append(_up(state, cache, threads))
        embedded.down(state, wipe=False)
        spread = ", ".join(f"{s:.1f}" for s in took)
        notes = (f"in a state directory used before: {spread} s; in a new one: {fresh:.1f} s",)
        best = _alone(state, cache)
        return Figure(statistics.median(took), "s", best, lower_is_better=True, notes=notes)


@contextmanager
def _folder() -> Iterator[tuple[Path, Executor]]:
    """Yield a folder whose services are stopped at the end, and the threads that start them."""
    folder = Path(tempfile.mkdtemp(prefix="rollcall-bench-"))
    try:
        with ThreadPoolExecutor(len(embedded.NAMES)) as threads:
            yield folder, threads
    finally:
        embedded.down(folder / "state", wipe=True)
        shutil.rmtree(folder)


def _up(state: Path, cache: Path, threads: Executor) -> float:
    return timed(lambda: embedded.up(state, cache, ready=answers, threads=threads))[0]


def _alone(state: Path, cache: Path) -> float:
    """Return the seconds of the slower service of a state directory, each started alone."""
    home = state.absolute() / "services"
    ports = iter([free_port(()) for _ in range(4)])
    kafka = KafkaBroker(home / "kafka", next(ports), next(ports), cache, answers, {})
    registry = SchemaRegistry(home / "registry", next(ports), next(ports), cache)
    return max(
        statistics.median(_start(service) for _ in range(TIMES)) for service in (kafka, registry)
    )


def _start(service: Service) -> float:
    """Return the seconds from one process's start to its first answer."""
    command = service.prepare()
    began = time.monotonic()
    process = spawn(command, service.home / "alone.log", directory=service.home)
    try:
        while process.poll() is None and not service.is_ready():
            time.sleep(0.01)
        return time.monotonic() - began
    finally:
        end([process], GRACE_S)
