"""The weights files of a run: what a crash left is cleared, what is torn mended, what is old goes.

Servers read them by the URI of the record that announces them; their names follow from their
content.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from schemas.errors import WireError
from schemas.messages import WeightsFile
from schemas.weights import RawTensor, from_file, is_whole, write_weights

KEEP = 16


def clear_temporary(directory: Path) -> None:
    """Remove what a crash in the middle of writing weights has left; nobody refers to it."""
    for path in directory.glob("*.tmp"):
        path.unlink(missing_ok=True)


def clear_unannounced(directory: Path, newest: int) -> None:
    """Remove weights of versions above the newest: their numbers will be used for others."""
    for path in directory.glob("v*.safetensors"):
        number = path.name.partition("-")[0].removeprefix("v")
        if number.isdecimal() and int(number) > newest:
            path.unlink(missing_ok=True)


def mend(
    directory: Path, file: WeightsFile | None, version: int, tensors: Mapping[str, RawTensor]
) -> bool:
    """Write weights again where their file is gone or torn; whether it was.

    What was announced is right again, for the same weights have the same name.
    """
    if file is not None and is_whole(file):
        return False
    write_weights(str(directory), version, tensors)
    return True


def of_version(directory: Path, version: int) -> dict[str, RawTensor] | None:
    """The weights of a version that was announced from here; None where their file is gone."""
    for path in sorted(directory.glob(f"v{version:08d}-*.safetensors")):
        with suppress(OSError, WireError):  # gone meanwhile, or torn
            return from_file(path)
    return None


def prune(directory: Path, awaited: Iterable[int]) -> None:
    """Delete all but the newest files, for those that are reading, and what is awaited."""
    staying = {f"v{version:08d}" for version in awaited}
    for old in sorted(directory.glob("v*.safetensors"))[:-KEEP]:
        if old.name.partition("-")[0] not in staying:
            old.unlink(missing_ok=True)
