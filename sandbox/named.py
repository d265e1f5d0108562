"""How environments and scorers are found: by a short name of ours, or as `module:name` of yours.

Code behind a name is foreign: whatever it raises becomes WorkFailed where it is called, in
`foreign`, and nowhere else.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from schemas import names
from schemas.errors import Refused, RollcallError, WorkFailed

REASON_CHARS = 4000


def complaint(kind: str, name: str, shipped: Mapping[str, str]) -> str:
    """What is wrong with a name, or nothing; imports at most the packages around a module."""
    if name in shipped:
        return ""
    module, colon, attribute = name.partition(":")
    if not colon:
        return f"{names.unknown(kind, name, shipped)} (your own goes by 'module:name')"
    if not attribute.isidentifier() or not all(map(str.isidentifier, module.split("."))):
        return f"{kind} {name!r} is not of the form 'module:name'"
    if not _findable(module):
        missing = f"{kind} {name!r}: there is no module {module!r} here; is its package installed?"
        return missing + names.hidden(module)
    return ""


def load(kind: str, name: str, shipped: Mapping[str, str]) -> Callable[..., Any]:
    """The callable behind a name. Raises WorkFailed(`unknown_<kind>`)."""
    code = f"unknown_{kind}"
    wrong = complaint(kind, name, shipped)
    if wrong:
        raise WorkFailed(code, wrong, retriable=False)
    try:
        return names.load(kind, shipped.get(name, name))
    except Refused as error:
        raise WorkFailed(code, str(error), retriable=False) from error


@contextmanager
def foreign(code: str, what: str) -> Iterator[None]:
    """Turn whatever code of others raises into WorkFailed(code); errors of our tree pass.

    SystemExit is among it: an environment that calls `sys.exit` must not end its worker. Ctrl-C
    comes to the main thread only; elsewhere a KeyboardInterrupt is the code's own.
    """
    try:
        yield
    except RollcallError:
        raise
    except BaseException as error:
        ours = threading.current_thread() is threading.main_thread()
        if isinstance(error, KeyboardInterrupt) and ours:
            raise
        msg = f"{what}: {type(error).__name__}: {_words(error)}"
        raise WorkFailed(code, msg, retriable=False) from error


def _words(error: BaseException) -> str:
    """What an error of others says, as text that can be written; saying it may fail too."""
    try:
        return str(error)[:REASON_CHARS].encode("utf-8", "replace").decode()
    except Exception as worse:  # its class is foreign too
        return f"its text cannot be shown: {type(worse).__name__}"


def _findable(module: str) -> bool:
    try:
        with foreign("", module):
            return find_spec(module) is not None
    except WorkFailed:
        return False
