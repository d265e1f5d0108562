"""The image `base`: a Debian with python3, git and pytest, made by debootstrap."""

import os
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

from rollcall.sandbox.boxes.image_store import (
    BuiltImage,
    built,
    clear_disk,
    directory,
    is_built,
    making,
    seal,
)
from rollcall.sandbox.locked_folder import hold
from rollcall.schemas.errors import Refused

BASE = "base"
PACKAGES = ("git", "procps", "python3", "python3-pip", "python3-pytest", "python3-venv")
"""Packages that are installed beside Debian's minimal set."""
BUILD_LINES = 15


def build_base() -> BuiltImage:
    """Build it from apt's mirror if it does not exist; takes a minute. Raises Refused."""
    if is_built(BASE):
        return built(BASE)
    _check_host()
    with making() as folder:
        tree = folder / "tree"
        (tree / "etc/dpkg/dpkg.cfg.d").mkdir(parents=True)
        tree.chmod(0o755)
        # No fsync: an image that a power cut damages can be built again.
        (tree / "etc/dpkg/dpkg.cfg.d/unsafe-io").write_text("force-unsafe-io\n")
        _debootstrap(tree)
        digest = sha256((tree / "var/lib/dpkg/status").read_bytes()).hexdigest()
        seal(folder, BuiltImage(BASE, digest), directory() / BASE)
    return built(BASE)


def _check_host() -> None:
    if os.getuid() != 0:
        msg = "image 'base' is built by root alone: debootstrap makes the files of a system"
        raise Refused(msg)
    for program in ("debootstrap", "apt-get"):
        if not shutil.which(program):
            msg = f"{program} is not installed; `apt-get install debootstrap` on a Debian host"
            raise Refused(msg)
    directory().mkdir(parents=True, exist_ok=True)
    directory().chmod(0o755)
    clear_disk(directory())


def _debootstrap(tree: Path) -> None:
    script = (
        "set -e; . /etc/os-release\n"
        "mirror=$(apt-get indextargets --format '$(REPO_URI)' "
        '"Codename: $VERSION_CODENAME" "Component: main" | head -n 1)\n'
        'http_proxy=; eval "$(apt-config shell http_proxy Acquire::http::Proxy)"\n'
        'test -z "$http_proxy" || export http_proxy\n'
        'debootstrap --variant=minbase --include="$2" "$VERSION_CODENAME" "$1" "$mirror"\n'
        'rm -rf "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/*\n'
    )
    argv = ["/bin/sh", "-c", script, "sh", str(tree), ",".join(PACKAGES)]
    held = hold(tree.parent)  # debootstrap may outlive this process and still write there
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            pass_fds=[held],
        )
    finally:
        os.close(held)
    if done.returncode:
        last = (done.stdout + done.stderr).splitlines()[-BUILD_LINES:]
        msg = "image 'base' cannot be built; debootstrap ended with:\n" + "\n".join(last)
        raise Refused(msg)
