"""Raises ImportError where a module of somebody else's is found for one of our packages."""

from rollcall_command import clash

WRONG = clash()
if WRONG:
    raise ImportError(WRONG)
