"""Raises ImportError where a module of somebody else's is found for one of our packages."""

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
    raise ImportError(WRONG)
