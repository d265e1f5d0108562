"""Another release, unpacked so that its workers can run beside ours on one log.

Its packages are in a separate folder, which comes before ours on their path; their dependencies
are those installed here.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from compose.cluster import Cluster
from compose.services.service_errors import ServicesError
from schemas.errors import Refused


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
    if not (directory / "compose" / "chaos" / "process.py").is_file():
        msg = f"--beside {wheel} is no wheel of Rollcall's: it has no compose/chaos/process.py"
        raise Refused(msg)
    return directory


def provision(release: Path, cluster: Cluster, policies: Sequence[str]) -> None:
    """Have another release make its topics and register its schemas, before ours does.

    Raises ServicesError.
    """
    named = [word for policy in policies for word in ("--policy", policy)]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "compose.cli", "topics", "apply", *named],
        env={**os.environ, **cluster.environment(), "PYTHONPATH": str(release)},
        cwd=release.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        msg = f"the release beside ours cannot provision its topics: {done.stderr.strip()[-500:]}"
        raise ServicesError(msg)
