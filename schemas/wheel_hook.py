"""Puts the compiled codec into the wheel, or into the source folder of an editable install.

If it cannot be compiled, the wheel is plain Python and works the same. `CODEC=plain` in the
environment requests that, for machines without a compiler and without `ziglang`.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CodecHook(BuildHookInterface):  # type: ignore[misc]
    """Called by hatchling for each wheel; imports the compiler from the sources."""

    def dependencies(self) -> list[str]:
        """Return further requirements of the build: a compiler if the machine has none."""
        if wants_plain():
            return []
        sys.path.insert(0, self.root)
        from rollcall.schemas.compile_codec import compiler

        return ["cython>=3.1,<4", "fastavro>=1.12,<2", *([] if compiler() else ["ziglang"])]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the codec; a failure is a warning."""
        if wants_plain():
            return
        sys.path.insert(0, self.root)
        from rollcall.schemas.compile_codec import CannotCompile, compile_codec

        beside = Path(self.root) / "schemas"
        editable = version == "editable"
        self.folder = tempfile.TemporaryDirectory()  # kept until the wheel is written
        try:
            library = compile_codec(beside if editable else Path(self.folder.name))
        except CannotCompile as error:
            self.app.display_warning(str(error))
            return
        if not editable:
            build_data["force_include"][str(library)] = f"rollcall/schemas/{library.name}"
            build_data["pure_python"], build_data["infer_tag"] = False, True


def wants_plain() -> bool:
    return os.environ.get("CODEC") == "plain"
