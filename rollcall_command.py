"""Where the command `rollcall` begins: a module whose name no package of a user's has.

A user's own `compose` or `schemas` may be found in place of ours. So it is looked here whether our
packages are the ones that are found, before one of them is imported. Modules that take a moment to
load are imported where a Ctrl-C is caught.
"""

import sys

REFUSED, INTERRUPTED = 2, 130


def clash() -> str:
    """What to say where a module of somebody else's is found for one of ours; empty elsewhere."""
    from importlib.util import module_from_spec, spec_from_file_location
    from pathlib import Path

    # By its path: a package of a user's may be called `schemas` as well.
    place = Path(__file__).parent / "schemas" / "rooms.py"
    spec = spec_from_file_location("rollcall_rooms", place)
    assert spec is not None
    assert spec.loader is not None
    rooms = module_from_spec(spec)
    spec.loader.exec_module(rooms)
    return str(rooms.clash())


def refuse_a_clash() -> None:
    """End the process with one line where our packages are hidden."""
    wrong = clash()
    if wrong:
        print(f"rollcall: {wrong}", file=sys.stderr)
        sys.exit(REFUSED)


def main() -> None:
    """Load the commands, which takes a while, and call one; a Ctrl-C meanwhile says nothing."""
    try:
        refuse_a_clash()
        from compose.cli.app import main as command_line
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    command_line()
