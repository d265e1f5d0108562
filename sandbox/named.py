"""How environments and scorers are found: by a short name of ours, or as `module:name` of yours.

Code behind a name is foreign: whatever it raises becomes WorkFailed where it is called, in
`foreign`, and nowhere else.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from schemas.errors import RollcallError, WorkFailed


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for people: the known name that was probably meant, or else some that exist."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    more = ", ..." if len(names) > 8 else ""
    return f"known are {', '.join(names[:8])}{more}"


def complaint(kind: str, name: str, shipped: Mapping[str, str]) -> str:
    """What is wrong with a name, or nothing; imports at most the packages around a module."""
    if name in shipped:
        return ""
    module, colon, attribute = name.partition(":")
    if not colon:
        hint = nearest(name, shipped)
        return f"unknown {kind} {name!r}; {hint} (your own goes by 'module:name')"
    if not attribute.isidentifier() or not all(map(str.isidentifier, module.split("."))):
        return f"{kind} {name!r} is not of the form 'module:name'"
    if not _findable(module):
        return f"{kind} {name!r}: there is no module {module!r} here; is its package installed?"
    return ""


def load(kind: str, name: str, shipped: Mapping[str, str]) -> Callable[..., Any]:
    """The callable behind a name. Raises WorkFailed(`unknown_<kind>`)."""
    code = f"unknown_{kind}"
    wrong = complaint(kind, name, shipped)
    if wrong:
        raise WorkFailed(code, wrong, retriable=False)
    module, _, attribute = shipped.get(name, name).partition(":")
    with foreign(code, f"{kind} {name!r} cannot be imported"):
        home = import_module(module)
    found: Callable[..., Any] | None = getattr(home, attribute, None)
    if found is None or not callable(found):
        callables = [key for key, value in vars(home).items() if callable(value)]
        msg = f"{kind} {name!r}: {module} has no callable {attribute!r}; "
        raise WorkFailed(code, msg + nearest(attribute, callables), retriable=False)
    return found


@contextmanager
def foreign(code: str, what: str) -> Iterator[None]:
    """Turn what code of others raises into WorkFailed(code); errors of our tree pass.

    SystemExit is among it: an environment that calls `sys.exit` must not end its worker.
    """
    try:
        yield
    except RollcallError:
        raise
    except (Exception, SystemExit) as error:
        msg = f"{what}: {type(error).__name__}: {error}"
        raise WorkFailed(code, msg, retriable=False) from error


def _findable(module: str) -> bool:
    try:
        with foreign("", module):
            return find_spec(module) is not None
    except WorkFailed:
        return False
