"""A Python with pytest and nothing else, which starts quickly and can be shown to any box."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

SYSTEMS = Path("/usr/bin/python3")
PACKAGES = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")


def usable(python: Path) -> bool:
    """Whether an interpreter is there and new enough for our pytest."""
    return python.exists() and _version(python) >= (3, 10)


def bare_interpreter(directory: Path) -> Path:
    """Make one in a directory: the system's, since boxes see that, or else the one that runs."""
    base = SYSTEMS if usable(SYSTEMS) else Path(sys._base_executable)  # type: ignore[attr-defined]
    major, minor = _version(base)
    site = directory / "lib" / f"python{major}.{minor}" / "site-packages"
    site.mkdir(parents=True)
    (directory / "bin").mkdir()
    (directory / "bin" / "python3").symlink_to(base)
    (directory / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
    for name in PACKAGES:
        found = importlib.util.find_spec(name)
        assert found
        assert found.origin
        source = Path(found.origin)
        if source.name == "__init__.py":
            shutil.copytree(source.parent, site / name)
        else:
            shutil.copy(source, site)
    return directory


def _version(python: Path) -> tuple[int, int]:
    said = subprocess.run(
        [python, "-c", "import sys; print(*sys.version_info[:2])"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    major, minor = map(int, said.split())
    return major, minor
