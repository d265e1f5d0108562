"""Wheels in a folder in place of a package index, so that installing needs no network."""

import zipfile
from pathlib import Path

import pytest


def wheel(folder: Path, name: str, version: str, source: str, *, python: str = ">=3.11") -> None:
    """A package of one module that bears its name; it has whatever extra is asked for."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nProvides-Extra: openai\n"
    files = {
        f"{name}.py": source,
        f"{info}/METADATA": f"{metadata}Requires-Python: {python}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)


def use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on pip finds what is in there, and nothing else."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
