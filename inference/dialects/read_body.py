"""Request bodies: validated against a dialect's dataclasses; refusals name the field.

Unknown keys are ignored, as agents send many. No value is converted: a number given as text is
refused.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import ConfigDict, FailFast, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, from_json

from rollcall.inference.dialects.dialect import Declined
from rollcall.inference.dialects.surrogate_repair import replace_surrogates
from rollcall.schemas.agent_requests import FUNCTION
from rollcall.schemas.tool_calls import json_text
from rollcall.schemas.untrusted_text import clean_text

B = TypeVar("B")
T = TypeVar("T")
Path = tuple[str | int, ...]


class _FirstFault(FailFast):
    """A hashable FailFast, since an alternative of a union must be hashable."""

    def __hash__(self) -> int:
        return id(type(self))


TAKEN = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)
MOST = 2**31 - 1
Tokens = Annotated[int, Field(ge=1, le=MOST)]
Temperature = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, le=1)]
MOST_MESSAGES = 20_000
Many = Annotated[list[T], _FirstFault()]
"""A list whose validation stops at the first wrong item, so that errors are not collected."""
Messages = Annotated[list[T], _FirstFault(), Field(max_length=MOST_MESSAGES)]
FOUND_CHARS = 80
WORDS_CHARS = 1000
WORDS = (
    ("Input should be", "must be"), ("List should have", "must have"), ("a valid array", "a list"),
    ("a valid integer", "an integer"), ("a valid string", "a text"), ("a valid ", "a "),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TextPart:
    """One part of a message's content; only text can be rendered."""

    type: Literal["text"]
    text: str


Content = str | Many[TextPart] | None


MOST_OBJECTS = 250_000
MOST_VALUES = 2_000_000
"""The most values in one body: parsing it blocks the worker's other requests."""
MOST_DEEP = 200
"""The nesting depth of lists and objects that the parser accepts; the limit is the parser's."""
TOO_DEEP = "recursion limit exceeded"
"""The parser's message for a body that is nested too deep."""


def read_body(body: bytes, taken: type[B]) -> B:
    """Parse a body as the dialect's type. Raises Declined (400), naming field, found, wanted."""
    _check_size(body)
    try:
        return _validated(body, taken)
    except ValidationError as error:
        mended = replace_surrogates(body) if _is_no_json(error) else body
        if mended is body:
            raise _declined(error, body) from None
    try:
        return _validated(mended, taken)
    except ValidationError as error:
        raise _declined(error, mended) from None


def _validated(body: bytes, taken: type[B]) -> B:
    read: B = _adapter_of(cast(Any, taken)).validate_json(body)
    return read


def _is_no_json(error: ValidationError) -> bool:
    return error.errors(include_url=False, include_input=False)[0]["type"] == "json_invalid"


def _check_size(body: bytes) -> None:
    """Raise Declined for more than MOST_VALUES values; most bodies are too short to check."""
    if len(body) <= MOST_OBJECTS:
        return
    for most, marks in ((MOST_OBJECTS, (b"{", b"[")), (MOST_VALUES, (b",",))):
        for mark in marks:
            if body.count(mark) > most:
                what = "objects or lists" if most == MOST_OBJECTS else "values"
                msg = f"the body has more than {most:,} {what}; send fewer"
                raise Declined(400, "invalid_request_error", msg)


def joined(content: Content) -> str:
    """Return the parts joined to one text; "" for null."""
    if isinstance(content, list):
        return "".join(part.text for part in content)
    return content or ""


def malformed(message: str, param: str) -> Declined:
    """Return the refusal of one field, for rules that its type cannot express."""
    return Declined(400, "invalid_request_error", f"{param} {message}", param=param)


def tools_text(functions: Iterable[tuple[str, str | None, Any]]) -> str:
    """Return tools in their canonical form: compact JSON; empty for none."""
    tools = [
        {
            "type": "function",
            "function": {"name": name}
            | ({} if description is None else {"description": description})
            | ({} if parameters is None else {"parameters": parameters}),
        }
        for name, description, parameters in functions
    ]
    try:
        return json_text(tools) if tools else ""
    except ValueError:
        msg = "hold a number that is not finite"
        raise malformed(msg, "tools") from None


def tool_choice_of(word: str, name: str, names: Sequence[str]) -> str:
    """Return the neutral choice; `word` is auto, none, required, or `named` for function `name`."""
    if word != "named":
        return word
    if name not in names:
        tools = ", ".join(names) or "none"
        msg = f"names {clean_text(name, 80)!r}, which is none of the tools: {tools}"
        raise malformed(msg, "tool_choice")
    return FUNCTION + name


@cache
def _adapter_of(read: Any) -> TypeAdapter[Any]:
    return TypeAdapter(read)


def _declined(error: ValidationError, body: bytes) -> Declined:
    """Return the refusal; of a union's alternatives it reports those with the deepest path."""
    errors = error.errors(include_url=False)
    if _is_no_json(error):
        return Declined(400, "invalid_request_error", _no_json(errors[0]["msg"]))
    value = from_json(body)
    told = [_told(one, value) for one in errors]
    furthest = max(len(path) for path, _, _ in told)
    path, _, found = next(one for one in told if len(one[0]) == furthest)
    wanted = dict.fromkeys(words for at, words, _ in told if at == path)
    place = _written(path)
    words = clean_text(f"{place or 'the body'} {' or '.join(wanted)}{found}", WORDS_CHARS)
    return Declined(400, "invalid_request_error", words, param=place or None)


def _no_json(words: str) -> str:
    """Return the message for a body that cannot be parsed as JSON."""
    _, deep, place = words.partition(TOO_DEEP)
    if not deep:
        return f"the body is no JSON: {words}"
    return f"the body is nested more than {MOST_DEEP} deep{place}; send JSON that is flatter"


def _told(error: ErrorDetails, body: object) -> tuple[Path, str, str]:
    """Return the path of an error, the expected value, and the value found."""
    path = _path(error["loc"], body, missing=error["type"] == "missing")
    found = f", found {_found(error['input'])}"
    if error["type"] == "missing":
        return path, "is missing", ""
    if not error["type"].startswith("union_tag"):
        return path, _wanted(error["msg"]), found
    named = error["ctx"]["discriminator"].strip("'")
    tag = "type" if named.endswith("()") else named  # a function finds types that may be left out
    if error["type"] == "union_tag_not_found":
        return (*path, tag), "is missing", ""
    words = f"must be one of {error['ctx']['expected_tags']}"
    return (*path, tag), words, f", found {_found(error['ctx']['tag'])}"


def _wanted(words: str) -> str:
    for theirs, ours in WORDS:
        words = words.replace(theirs, ours)
    return words


def _path(loc: Path, body: object, *, missing: bool) -> Path:
    """Return the path without pydantic's names of union branches, which are no keys of the body."""
    path: list[str | int] = []
    value: Any = body
    for at, key in enumerate(loc):
        if _has(value, key):
            value = value[key]
        elif not (missing and at == len(loc) - 1):
            continue
        path.append(key)
    return tuple(path)


def _has(value: object, key: str | int) -> bool:
    return (
        isinstance(value, list)
        if isinstance(key, int)
        else isinstance(value, dict) and key in value
    )


def _written(path: Path) -> str:
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    return text.removeprefix(".")


def _found(value: object) -> str:
    if isinstance(value, str | bytes):
        return clean_text(repr(value[:FOUND_CHARS]))
    return {dict: "an object", list: "a list", type(None): "null"}.get(
        type(value), clean_text(repr(value), FOUND_CHARS)
    )
