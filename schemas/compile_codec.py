"""Builds the compiled codec: `python -m rollcall.schemas.compile_codec`, or with the wheel.

Needs Cython, and a C compiler or the package `ziglang`. Without them plain Python does the same.
"""

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O2", "-shared", "-fPIC", "-w")
COMPILE_S = 600.0


class CannotCompile(Exception):
    """A compiler is missing or fails; the text says which."""


def compiler() -> list[str] | None:
    """Return the command of a C compiler; None if there is none."""
    for name in COMPILERS:
        if path := shutil.which(name):
            return [path]
    return [sys.executable, "-m", "ziglang", "cc"] if find_spec("ziglang") else None


def compile_codec(into: Path) -> Path:
    """Build the extension module in a folder and return its path; raise CannotCompile."""
    command = compiler()
    if find_spec("Cython") is None or command is None:
        missing = "no C compiler and no ziglang" if command is None else "no Cython"
        msg = f"the codec stays plain Python: {missing} here"
        raise CannotCompile(msg)
    # Imported here because `compiler` is also called before anything is installed.
    from rollcall.schemas.avro_cython import source
    from rollcall.schemas.message_code import COMPILED, made_from, records

    made = into / f"{COMPILED}{sysconfig.get_config_var('EXT_SUFFIX')}"
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / f"{COMPILED}.pyx"
        text.write_text(source(records(), made_from()))
        as_c, library = text.with_suffix(".c"), text.with_suffix(".so")
        mac = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
        headers = f"-I{sysconfig.get_path('include')}"
        _run(
            sys.executable,
            "-m",
            "cython",
            "-3",
            "--module-name",
            f"rollcall.schemas.{COMPILED}",
            text,
        )
        _run(*command, *FLAGS, *mac, headers, as_c, "-o", library)
        # Running processes keep the file that they have mapped.
        made.unlink(missing_ok=True)
        shutil.move(library, made)
    return made


def _run(*command: str | Path) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_S)
    except (OSError, subprocess.SubprocessError) as error:
        told = getattr(error, "stderr", None) or str(error)
        msg = f"the codec stays plain Python: {told[-2000:]}"
        raise CannotCompile(msg) from error


def main() -> int:
    """Build it in the folder of the sources; print its path, or the reason of a failure."""
    try:
        print(compile_codec(Path(__file__).parent))
    except CannotCompile as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
