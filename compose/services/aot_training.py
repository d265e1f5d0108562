"""Makes the ahead-of-time caches of services: `python -m` this, a cache directory, a pid, names.

Each service is started once more, in a folder and on ports of its own, until it answers; on its way
out its JVM writes down the classes that it had needed. All at the lowest priority, and no longer
than the process of that pid lives, a service of whoever had this done: when all is taken down
nothing is left, and a later start makes the cache.
"""

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from compose.processes import end, holds_within, module, spawn, started
from compose.services.service_errors import ServicesError, last_lines
from compose.services.service_process import Service

READY_DEADLINE_S = 1800.0
"""At the lowest priority, on a machine that others keep busy."""
WRITING_DEADLINE_S = 1800.0
LEFT_S = 2 * (READY_DEADLINE_S + WRITING_DEADLINE_S)
ENVIRONMENT = ("PATH", "HOME", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG")


class TakenDown(Exception):
    """What the cache was made beside has ended."""


def train_beside(cache_dir: Path, pid: int, names: list[str]) -> None:
    """Have a process make the caches that lives as long as that of `pid`, or go without."""
    if not names:
        return
    log = cache_dir / "aot" / "training.log"
    # Of the caller's settings, state directory and working directory it knows nothing.
    kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    command = module(__name__, str(cache_dir), str(pid), *names)
    with contextlib.suppress(OSError):
        spawn(command, log, environment=kept, directory=log.parent, outlives_us=True)


def train_all(
    cache_dir: Path, makers: Mapping[str, Callable[[Path], Service]], lives: Callable[[], bool]
) -> None:
    """Make a cache of each service; those that are not made when `lives` ends are due again."""
    due = list(makers)
    try:
        for name, make in makers.items():
            train(cache_dir, make, lives)
            due.remove(name)
    except TakenDown:
        for name in due:
            makers[name](cache_dir).aot.put_off()


def train(cache_dir: Path, make: Callable[[Path], Service], lives: Callable[[], bool]) -> None:
    """Make the cache of the service that `make` sets up in a folder.

    Raises ServicesError, and TakenDown once what it is made beside does not live.
    """
    folder = cache_dir / "aot"
    for left in folder.glob(".training-*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > LEFT_S:  # by one that was killed
                shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".training-", dir=folder) as home:
        service = make(Path(home))
        service.aot.keep(_written(service, lives))


def _written(service: Service, lives: Callable[[], bool]) -> Path:
    """Run it until it answers, then end it; return what its JVM wrote."""
    java, *arguments = service.prepare()
    made, log = service.home / "made.aot", service.home / "training.log"
    process = spawn([java, f"-XX:AOTCacheOutput={made}", *arguments], log, directory=service.home)

    def over() -> bool:
        return process.poll() is not None or not lives()

    try:
        holds_within(lambda: over() or service.is_ready(), READY_DEADLINE_S, every_s=0.2)
        ready = not over()
        process.terminate()
        holds_within(over, WRITING_DEADLINE_S if ready else 0.0, every_s=0.2)
    finally:
        end([process], 0.0)
    if not lives():
        raise TakenDown
    if not (ready and made.exists()):
        msg = f"no cache was made for {service.name}; the end of what it said:\n{last_lines(log)}"
        raise ServicesError(msg)
    return made


def main() -> None:
    from compose.cluster import answers
    from compose.services.kafka_broker import KafkaBroker
    from compose.services.ports import free_port
    from compose.services.schema_registry import SchemaRegistry

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
