"""Makes the ahead-of-time caches of services: `python -m` this, a cache directory, their names.

Each service is started once more, in a folder and on ports of its own, until it answers; on its way
out its JVM writes down the classes that it had needed. All at the lowest priority, one at a time.
"""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from compose.processes import end, holds_within, module, spawn
from compose.services.artifacts import exclusive
from compose.services.service_errors import ServicesError, last_lines
from compose.services.service_process import Service

READY_DEADLINE_S = 1800.0
"""At the lowest priority, on a machine that others keep busy."""
WRITING_DEADLINE_S = 1800.0
ENVIRONMENT = ("PATH", "HOME", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG")


def train_beside(cache_dir: Path, names: list[str]) -> None:
    """Have a process that outlives this one make the caches; where none can be had, go without."""
    if not names:
        return
    log = cache_dir / "aot" / "training.log"
    # Of the caller's settings, state directory and working directory it knows nothing.
    kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    command = module(__name__, str(cache_dir), *names)
    with contextlib.suppress(OSError):
        spawn(command, log, environment=kept, directory=log.parent, outlives_us=True)


def train(cache_dir: Path, make: Callable[[Path], Service]) -> None:
    """Make the cache of the service that `make` sets up in a folder; raises ServicesError."""
    folder = cache_dir / "aot"
    with exclusive(folder / "training.lock"):
        for left in folder.glob(".training-*"):  # by one that was killed
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=".training-", dir=folder) as home:
            service = make(Path(home))
            service.aot.keep(_written(service))


def _written(service: Service) -> Path:
    """Run it until it answers, then end it; return what its JVM wrote."""
    java, *arguments = service.prepare()
    made, log = service.home / "made.aot", service.home / "training.log"
    process = spawn([java, f"-XX:AOTCacheOutput={made}", *arguments], log, directory=service.home)
    try:
        answered = lambda: process.poll() is not None or service.is_ready()  # noqa: E731
        ready = holds_within(answered, READY_DEADLINE_S, every_s=0.2) and process.poll() is None
    finally:
        end([process], WRITING_DEADLINE_S)
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
    for name in sys.argv[2:]:
        train(cache_dir, makers[name])


if __name__ == "__main__":
    main()
