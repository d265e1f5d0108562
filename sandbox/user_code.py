"""Lookup of environments and scorers: by a short name of ours, or as `module:name` of yours.

Code behind a name is foreign: its exceptions are converted into WorkFailed where it is called, by
`convert_errors`, and nowhere else.
"""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from types import TracebackType
from typing import Any

from rollcall.schemas import names
from rollcall.schemas.errors import Refused, RollcallError, WorkFailed
from rollcall.schemas.former_names import accept_former_names
from rollcall.schemas.interrupts import is_from_outside
from rollcall.schemas.untrusted_text import describe_exception


def complaint(kind: str, name: str, shipped: Mapping[str, str]) -> str:
    """Return the fault of a name, or ''; imports at most the packages around its module."""
    if name in shipped:
        return ""
    module, colon, attribute = name.partition(":")
    if not colon:
        return f"{names.unknown_name(kind, name, shipped)} (your own goes by 'module:name')"
    if not attribute.isidentifier() or not all(map(str.isidentifier, module.split("."))):
        return f"{kind} {name!r} is not of the form 'module:name'"
    if not _findable(module):
        return f"{kind} {name!r}: there is no module {module!r} here; is its package installed?"
    return ""


def load(kind: str, name: str, shipped: Mapping[str, str]) -> Callable[..., Any]:
    """Import the callable of a name. Raises WorkFailed(`unknown_<kind>`)."""
    code = f"unknown_{kind}"
    wrong = complaint(kind, name, shipped)
    if wrong:
        raise WorkFailed(code, wrong, retriable=False)
    try:
        return names.load(kind, shipped.get(name, name))
    except Refused as error:
        raise WorkFailed(code, str(error), retriable=False) from error


class convert_errors:  # in lower case, since it is used like a keyword
    """Convert exceptions of foreign code into WorkFailed(code); our own errors pass.

    This includes SystemExit: an environment that calls `sys.exit` must not end its worker. `what`
    is called only if something was raised.
    """

    __slots__ = ("_code", "_what")

    def __init__(self, code: str, what: str | Callable[[], str]) -> None:
        self._code = code
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None or isinstance(error, RollcallError) or is_from_outside(error):
            return
        what = self._what() if callable(self._what) else self._what
        raise WorkFailed(
            self._code, f"{what}: {describe_exception(error)}", retriable=False
        ) from error


def _findable(module: str) -> bool:
    accept_former_names()
    try:
        with convert_errors("", module):
            return find_spec(module) is not None
    except WorkFailed:
        return False
