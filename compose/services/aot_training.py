"""Make the ahead-of-time caches of services: `python -m` this, a cache directory, a pid, names.

Each service is started once more, in its own folder and on its own ports, until it answers; on exit
its JVM writes the classes that it needed. This runs at the lowest priority and only while the
process of that pid (a service of the caller) lives: after `down` nothing is left running, and a
later start makes the cache.
"""

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from rollcall.compose.processes import end, module, spawn, started, wait_until
from rollcall.compose.services.service_errors import ServicesError, last_lines
from rollcall.compose.services.service_process import Service

READY_DEADLINE_S = 1800.0
"""The timeout of a start at the lowest priority on a busy machine."""
WRITING_DEADLINE_S = 1800.0
LEFT_S = 2 * (READY_DEADLINE_S + WRITING_DEADLINE_S)
ENVIRONMENT = ("PATH", "HOME", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG")


class ServicesStopped(Exception):
    """The service beside which the cache was made has ended."""


def train_beside(cache_dir: Path, pid: int, names: list[str]) -> None:
    """Start a process that makes the caches while `pid` lives; skip it if that fails."""
    if not names:
        return
    log = cache_dir / "aot" / "training.log"
    # It does not inherit the caller's settings, state directory or working directory.
    kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    command = module(__name__, str(cache_dir), str(pid), *names)
    with contextlib.suppress(OSError):
        spawn(command, log, environment=kept, directory=log.parent, outlives_us=True)


def train_all(
    cache_dir: Path, makers: Mapping[str, Callable[[Path], Service]], lives: Callable[[], bool]
) -> None:
    """Make a cache of each service; those not made when `lives` turns False are due again."""
    due = list(makers)
    try:
        for name, make in makers.items():
            train(cache_dir, make, lives)
            due.remove(name)
    except ServicesStopped:
        for name in due:
            makers[name](cache_dir).aot.put_off()


def train(cache_dir: Path, make: Callable[[Path], Service], lives: Callable[[], bool]) -> None:
    """Make the cache of the service that `make` sets up in a folder.

    Raises ServicesError, and ServicesStopped once `lives` is False.
    """
    folder = cache_dir / "aot"
    for left in folder.glob(".training-*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > LEFT_S:  # left by a killed process
                shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".training-", dir=folder) as home:
        service = make(Path(home))
        service.aot.keep(_written(service, lives))


def _written(service: Service, lives: Callable[[], bool]) -> Path:
    """Run a service until it answers, then end it; return the file that its JVM wrote."""
    java, *arguments = service.prepare()
    made, log = service.home / "made.aot", service.home / "training.log"
    process = spawn([java, f"-XX:AOTCacheOutput={made}", *arguments], log, directory=service.home)

    def over() -> bool:
        return process.poll() is not None or not lives()

    try:
        wait_until(lambda: over() or service.is_ready(), READY_DEADLINE_S, every_s=0.2)
        ready = not over()
        process.terminate()
        wait_until(over, WRITING_DEADLINE_S if ready else 0.0, every_s=0.2)
    finally:
        end([process], 0.0)
    if not lives():
        raise ServicesStopped
    if not (ready and made.exists()):
        msg = f"no cache was made for {service.name}; the end of what it said:\n{last_lines(log)}"
        raise ServicesError(msg)
    return made


def main() -> None:
    from rollcall.compose.cluster import answers
    from rollcall.compose.services.kafka_broker import KafkaBroker
    from rollcall.compose.services.ports import free_port
    from rollcall.compose.services.schema_registry import SchemaRegistry

    os.nice(19)
    cache_dir = Path(sys.argv[1])

    def kafka(home: Path) -> KafkaBroker:
        port = free_port(())
        return KafkaBroker(home, port, free_port((port,)), cache_dir, answers, {})

    def registry(home: Path) -> SchemaRegistry:
        port = free_port(())
        return SchemaRegistry(home, port, free_port((port,)), cache_dir)

    makers: dict[str, Callable[[Path], Service]] = {"kafka": kafka, "registry": registry}
    pid, *names = sys.argv[2:]
    born = started(int(pid))
    train_all(
        cache_dir,
        {name: makers[name] for name in names},
        lambda: born is not None and started(int(pid)) == born,
    )


if __name__ == "__main__":
    main()
