"""Tiny source releases in a folder in place of a package index; they build themselves."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

PROJECT = """\
[build-system]
requires = []
build-backend = "own_backend"
backend-path = ["."]
"""
BACKEND = """\
import os


def prepare_metadata_for_build_wheel(folder, config_settings=None):
    name = "{name}-{version}.dist-info"
    os.makedirs(os.path.join(folder, name))
    with open(os.path.join(folder, name, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return name
"""
WRONG = "def total(numbers):\n    return sum(numbers[1:])\n"
RIGHT = "def total(numbers):\n    return sum(numbers)\n"
OLD_TESTS = "from tiny import total\n\n\ndef test_of_none():\n    assert total([]) == 0\n"
NEW_TESTS = f"{OLD_TESTS}\n\ndef test_of_some():\n    assert total([2, 3]) == 5\n"
BUG = {"src/tiny.py": WRONG, "tests/test_tiny.py": OLD_TESTS, ".gitattributes": "* text=auto\n"}
FIX = {"src/tiny.py": RIGHT, "tests/test_tiny.py": NEW_TESTS, "NEWS": "Sums are whole.\r\n"}


def source_release(folder: Path, name: str, version: str, files: Mapping[str, str]) -> Path:
    """Write one as a client of an index would find it."""
    folder.mkdir(parents=True, exist_ok=True)
    own = {"pyproject.toml": PROJECT, "own_backend.py": BACKEND.format(name=name, version=version)}
    path = folder / f"{name}-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file, text in {**own, **files}.items():
            member = tarfile.TarInfo(f"{name}-{version}/{file}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path
