"""The times of the bare tools, without our code: the ceilings of boxes."""

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack

from rollcall.compose.services.service_errors import ServicesError
from rollcall.sandbox.boxes.box import Spec
from rollcall.sandbox.boxes.bubblewrap import FIRST_USER, READY, command, memory
from rollcall.sandbox.boxes.docker_engine import DockerEngine
from rollcall.sandbox.boxes.images import engine_image, image_tree

HELD = "echo ready; exec sleep 600"
NAMESPACES = ("--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--clearenv")
PLACES = ("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/w", "--chdir", "/w")
CONTAINER = (
    "--detach",
    "--network",
    "none",
    "--read-only",
    "--cap-drop",
    "ALL",
    "--tmpfs",
    "/tmp",
    "--tmpfs",
    "/w",
    "--security-opt",
    "no-new-privileges",
    "--entrypoint",
    "",
)
TOOL_S = 60.0


def namespaces(*program: str) -> list[str]:
    """Return the bubblewrap command of a program in its own namespaces over the host's programs."""
    return ["bwrap", *NAMESPACES, *image_tree("").arguments(), *PLACES, "--", *program]


def held_namespaces_ms() -> float:
    """Measure from the start of bubblewrap to the first output of its program.

    It has the arguments of `bubblewrap.command` and a box's user, but no control groups and
    overlays. Raises ServicesError.
    """
    argv, data = command(shutil.which("bwrap") or "bwrap", Spec(), image_tree(""), {})
    with ExitStack() as stack:
        given = [memory(content, stack) for content in data]
        began = time.perf_counter()
        with subprocess.Popen(
            [*_as_user(), *_renumbered(argv, given)],
            stdin=given[0],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=given[1:],
            env={},
            cwd="/",
        ) as process:
            assert process.stderr is not None
            said = process.stderr.readline()
            took_ms = (time.perf_counter() - began) * 1e3
            process.kill()
    if said != READY:
        msg = f"bare bubblewrap makes no box: {said.decode(errors='replace').strip()}"
        raise ServicesError(msg)
    return took_ms


def _as_user() -> list[str]:
    """Return the command that changes users; forking for that would take longer."""
    if os.getuid() != 0:
        return []
    return [
        shutil.which("setpriv") or "setpriv",
        f"--reuid={FIRST_USER}",
        f"--regid={FIRST_USER}",
        "--clear-groups",
    ]


def _renumbered(argv: Sequence[str], given: Sequence[int]) -> list[str]:
    """Return the arguments with our own descriptors' numbers; the first is standard input."""
    numbers = iter(given[1:])
    before = ("", *argv)
    return [
        str(next(numbers)) if last == "--ro-bind-data" else word
        for last, word in zip(before, argv, strict=False)
    ]


def container_ms() -> float:
    """Measure `docker run` until the container exists; it is removed again."""
    image = asyncio.run(DockerEngine().ask(lambda client: engine_image(client, "base")))
    began = time.perf_counter()
    ident = _said(["docker", "run", *CONTAINER, image, "/bin/sh", "-c", HELD])
    took_ms = (time.perf_counter() - began) * 1e3
    _said(["docker", "rm", "--force", ident])
    return took_ms


def spawns_per_s(count: int, at_once: int) -> float:
    """Measure programs in their own namespaces, started and ended per second, `at_once` at once."""
    began = time.perf_counter()
    for first in range(0, count, at_once):
        running = [
            subprocess.Popen(namespaces("/bin/true"), stdin=subprocess.DEVNULL)
            for _ in range(min(at_once, count - first))
        ]
        for process in running:
            if process.wait():
                msg = f"bare bubblewrap ended with {process.returncode}"
                raise ServicesError(msg)
    return count / (time.perf_counter() - began)


def shell_ms(command: str, times: int) -> list[float]:
    """Measure a command in a shell behind two bare pipes."""
    took_ms = []
    with subprocess.Popen(
        ["/bin/sh"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        for _ in range(times):
            began = time.perf_counter()
            shell.stdin.write(f"{command}; echo $?\n".encode())
            shell.stdout.read(1 << 16)
            took_ms.append((time.perf_counter() - began) * 1e3)
        shell.stdin.close()
    return took_ms


def _said(argv: Sequence[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=TOOL_S)
    if done.returncode:
        msg = f"`{' '.join(argv[:2])}` failed: {done.stderr.strip()[-500:]}"
        raise ServicesError(msg)
    return done.stdout.strip()
