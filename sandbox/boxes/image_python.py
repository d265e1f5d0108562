"""The Python of an image: its package directory, and the wheels that fit it."""

import platform
import re
from dataclasses import dataclass
from pathlib import Path

from rollcall.schemas.errors import Refused

LIBC = re.compile(r"^Package: libc6\n(?:\S.*\n|\s.*\n)*?Version: 2\.(\d+)", re.MULTILINE)
OLDEST_GLIBC, USUAL_GLIBC = 5, 17
"""Minor versions of glibc; the second is assumed for a system that does not state its own."""
INTERPRETER = b"/usr/bin/python3"


@dataclass(frozen=True, slots=True)
class ImagePython:
    """A CPython as Debian installs it."""

    version: str
    """The version, such as 3.11."""
    glibc_minor: int

    @property
    def packages(self) -> str:
        """Its directory for packages that are not the system's, relative to the root."""
        return f"usr/local/lib/python{self.version}/dist-packages"

    @property
    def platforms(self) -> list[str]:
        """The platform tags of compiled wheels that it can load, the newest glibc first."""
        machine = platform.machine()
        minors = range(self.glibc_minor, OLDEST_GLIBC - 1, -1)
        older = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
        return [
            f"{tag}_{machine}"
            for minor in minors
            for tag in (f"manylinux_2_{minor}", older.get(minor, ""))
            if tag
        ]

    def options(self) -> list[str]:
        """Return pip's options to take only wheels that fit it, and no source packages."""
        fits = ["--only-binary=:all:", "--implementation=cp", f"--python-version={self.version}"]
        return [*fits, *(f"--platform={each}" for each in self.platforms)]

    def environment(self) -> dict[str, str]:
        """Return the markers of requirements that differ from those of the running Python."""
        return {
            "python_version": self.version,
            "python_full_version": f"{self.version}.0",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "sys_platform": "linux",
            "platform_system": "Linux",
            "os_name": "posix",
            "extra": "",
        }


def image_python(tree: Path, name: str) -> ImagePython:
    """Find the Python in a tree of system files. Raises Refused."""
    found = [path.name.removeprefix("python") for path in tree.glob("usr/lib/python3.*")]
    if len(found) != 1:
        msg = f"image {name!r} has no Python that packages could be for: "
        msg += f"{len(found)} folders are like usr/lib/python3.11 in it"
        raise Refused(msg)
    status = tree / "var/lib/dpkg/status"
    libc = LIBC.search(status.read_text(errors="replace")) if status.is_file() else None
    return ImagePython(found[0], int(libc[1]) if libc else USUAL_GLIBC)
