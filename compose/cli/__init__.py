"""The command line: what a person types, read, called and printed; nothing is decided here.

Whatever is imported below needs our own packages, so it is looked here whether they are found.
"""

import sys

try:
    from schemas.rooms import clash
except ModuleNotFoundError:
    import schemas

    WRONG = (
        f"{schemas.__file__} is found where Rollcall's own package 'schemas' is meant; rename it, "
        "or take its folder out of PYTHONPATH"
    )
else:
    WRONG = clash()
if WRONG:
    print(f"rollcall: {WRONG}", file=sys.stderr)
    sys.exit(2)
