"""Installation of agents by name: each in its own virtual environment, from the package index.

An environment is made under a new name, tried, and then linked; so a killed install leaves no
usable half, and workers keep the one before. Two installs of one agent wait for each other. Agents
are never installed in our own environment, as their pinned dependencies would clash.
"""

import re
import secrets
import shutil
import stat
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import orjson

from rollcall.compose.services.artifacts import exclusive
from rollcall.sandbox.agents.shipped import POINTER, SHIPPED, InstalledAgent, installed_agent
from rollcall.sandbox.package_index import run_child
from rollcall.schemas.atomic_files import write_atomically
from rollcall.schemas.errors import Refused, Unavailable
from rollcall.schemas.names import hint, unknown_name
from rollcall.schemas.private_folders import make_private

MAKING = ".making"
"""The suffix of the folder for temporary files of a running install."""
UNTRIED = "it was not tried after it was installed"
PIP = ["-m", "pip", "--disable-pip-version-check", "--no-input"]
# Modules are compiled on import: most installed ones are never imported.
INSTALL = ["install", "--quiet", "--no-compile", "--retries", "2", "--timeout", "30"]


@dataclass(frozen=True, slots=True)
class ListedAgent:
    """An agent with an adapter, and its installation here."""

    name: str
    version: str
    state: str
    summary: str


def listing(home: Path) -> list[ListedAgent]:
    rows = []
    for name, agent in SHIPPED.items():
        here = installed_agent(home, name)
        state = "needs no installing" if not agent.requirements else "not installed"
        if here:
            state = f"broken: {here.broken}" if here.broken else "ready"
        rows.append(ListedAgent(name, here.version if here else "", state, agent.summary))
    return rows


def requirements(spec: str) -> tuple[str, tuple[str, ...]]:
    """Parse NAME or NAME==VERSION into an agent's name and its requirements. Raises Refused."""
    name, pinned, version = spec.partition("==")
    if name not in SHIPPED:
        raise unknown_name("agent", name, SHIPPED)
    first, *others = SHIPPED[name].requirements or [""]
    if not first:
        msg = f"agent {name!r} needs no installing: it is {SHIPPED[name].summary}"
        raise Refused(msg)
    if pinned and not re.fullmatch(r"[\w.!+]+", version):
        msg = f"{spec!r} names no version; write {name}==1.2.3"
        raise Refused(msg)
    exact = re.split("[<>=]", first)[0] + f"=={version}" if pinned else first
    return name, (exact, *others)


def install(home: Path, name: str, wanted: tuple[str, ...]) -> tuple[InstalledAgent, bool]:
    """Make the environment of an agent unless it exists; also return True if it was made.

    It is marked as untried. Raises Refused and Unavailable, ServicesError if `home` is not
    writable.
    """
    with exclusive(home / f"{name}.lock"):
        _remove_half_made(home / name)
        there = installed_agent(home, name)
        if there is not None and there.requirements == wanted:
            return there, False
        directory = home / name / secrets.token_hex(6)
        try:
            version = _fill(directory, name, wanted)
        except BaseException:
            _remove_half_made(home / name)
            raise
        made = InstalledAgent(directory, version, wanted, UNTRIED)
        point_to(home, name, made)
        shutil.rmtree(directory.with_suffix(MAKING))
        keep = {directory, there.directory if there else directory}
        for left in (home / name).iterdir():
            if left.is_dir() and left not in keep:  # workers may still use the last one
                shutil.rmtree(left, ignore_errors=True)
        return made, True


def mark(home: Path, name: str, broken: str) -> None:
    """Record the fault that a check found; empty if there is none."""
    with exclusive(home / f"{name}.lock"):
        there = installed_agent(home, name)
        if there is not None:
            point_to(home, name, replace(there, broken=broken))


def point_to(home: Path, name: str, made: InstalledAgent) -> None:
    """Make this the agent's environment."""
    pointer = {**asdict(made), "directory": made.directory.name}
    write_atomically(home / name / POINTER, orjson.dumps(pointer, option=orjson.OPT_INDENT_2))


def size_bytes(directory: Path) -> int:
    """Return the bytes of the files below a directory, without links."""
    found = (path.lstat() for path in directory.rglob("*"))
    return sum(each.st_size for each in found if stat.S_ISREG(each.st_mode))


def _remove_half_made(folder: Path) -> None:
    """Remove the remains of a failed or killed install, with its temporary files."""
    for scratch in folder.glob(f"*{MAKING}"):
        shutil.rmtree(scratch.with_suffix(""), ignore_errors=True)
        shutil.rmtree(scratch, ignore_errors=True)


def _fill(directory: Path, name: str, wanted: tuple[str, ...]) -> str:
    """Install with our own pip; return the installed version of the agent."""
    scratch = make_private(directory.with_suffix(MAKING))
    made = run_child([sys.executable, "-m", "venv", "--without-pip", str(directory)], scratch)
    if made.returncode:
        msg = f"no virtual environment can be made with {sys.executable}: {_last(made.stdout)}"
        raise Refused(msg)
    python = str(directory / "bin" / "python")
    done = run_child([sys.executable, *PIP, "--python", python, *INSTALL, *wanted], scratch)
    if done.returncode:
        raise refusal(name, wanted[0], done.stdout)
    code = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
    return run_child([python, "-c", code, name], scratch).stdout.strip()


def refusal(name: str, requirement: str, said: str) -> Exception:
    """Return the one-line error for the output of a failed pip."""
    here = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    if "No module named pip" in said:
        msg = f"agents are installed by pip, which {sys.executable} lacks; run `-m ensurepip` on it"
        return Refused(msg)
    if "connection broken" in said or "ConnectionError" in said or "ProxyError" in said:
        msg = (
            f"agent {name!r} cannot be installed: the package index does not answer; look at "
            "network, proxy and `pip config list`, and run the command again"
        )
        return Unavailable(msg)
    if "Requires-Python" in said or "require a different python" in said:
        msg = (
            f"agent {name!r} cannot be installed: {requirement} needs another one than {here}; "
            "run rollcall with one that it takes"
        )
        return Refused(msg)
    versions = re.search(r"\(from versions: ([^)]+)\)", said)
    pinned = requirement.rpartition("==")[2]
    if versions and "==" in requirement and versions[1] != "none":
        known = versions[1].split(", ")
        near = hint(pinned, known[-8:])
        return Refused(f"there is no version {pinned} of {name} for {here}; {near}")
    return Refused(f"agent {name!r} cannot be installed: {_last(said)}")


def _last(said: str) -> str:
    """Return the last line of the errors, or of the whole output."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    wrong = [line for line in lines if line.lower().startswith("error")]
    return ([*lines, *wrong] or ["it said nothing"])[-1][:500]
