"""Another release, unpacked so that its workers can run beside ours on one log.

Its packages are in a separate folder, which comes before ours on their path; their dependencies
are those installed here.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rollcall.compose.cluster import Cluster
from rollcall.compose.processes import module
from rollcall.compose.services.service_errors import ServicesError
from rollcall.schemas.errors import Refused


def unpack(wheel: Path, directory: Path) -> Path:
    """Unpack a wheel of ours into a new folder; raises Refused if it is none."""
    install = ["install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *install, "--target", str(directory), str(wheel)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        msg = f"--beside {wheel}: {lines[-1] if lines else 'pip cannot install it'}"
        raise Refused(msg)
    main = name_in(directory, "rollcall.compose.chaos.process").replace(".", "/") + ".py"
    if not (directory / main).is_file():
        msg = f"--beside {wheel} is no wheel of Rollcall's: it has no {main}"
        raise Refused(msg)
    return directory


def name_in(release: str | Path, name: str) -> str:
    """Return the name of one of our modules in a release; before 0.2.0 it was without `rollcall.`.

    `release` is the folder of its packages, empty for the release of this process.
    """
    if release and not (Path(release) / "rollcall" / "compose").is_dir():
        return name.removeprefix("rollcall.")
    return name


def provision(release: Path, cluster: Cluster, policies: Sequence[str]) -> None:
    """Have another release make its topics and register its schemas, before ours does.

    Raises ServicesError.
    """
    named = [word for policy in policies for word in ("--policy", policy)]
    done = subprocess.run(
        module(name_in(release, "rollcall.compose.cli"), "topics", "apply", *named),
        env={**os.environ, **cluster.environment(), "PYTHONPATH": str(release)},
        cwd=release.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        msg = f"the release beside ours cannot provision its topics: {done.stderr.strip()[-500:]}"
        raise ServicesError(msg)
