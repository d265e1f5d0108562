"""How much memory an object holds, with all that it alone leads to; deterministic, unlike RSS."""

import gc
import logging
import sys
import threading
import types

from rollcall.compose.settings import Settings
from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.schemas.codec import Codec

SHARED = (
    type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType,
    threading.Thread, logging.Logger, MemoryLog, Codec, Settings,
)  # fmt: skip
"""What a worker has not for itself, or has anyhow; the log among it."""


def held_bytes(root: object) -> int:
    """Of the object and of what it leads to, each counted once."""
    seen, left, size = set[int](), [root], 0
    while left:
        found = left.pop()
        if id(found) in seen or isinstance(found, SHARED):
            continue
        seen.add(id(found))
        size += sys.getsizeof(found)
        left.extend(gc.get_referents(found))
    return size
