"""Validation of request bodies by the dataclasses of a dialect; refusals name the field.

Unknown keys are ignored, as agents send many. No value is converted: a number in quotes is refused.
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


class _FailFast(FailFast):
    """A hashable FailFast, since an alternative of a union must be hashable."""

    def __hash__(self) -> int:
        return id(type(self))


BODY_CONFIG = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)
MOST = 2**31 - 1
Tokens = Annotated[int, Field(ge=1, le=MOST)]
Temperature = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, le=1)]
MOST_MESSAGES = 20_000
Many = Annotated[list[T], _FailFast()]
"""A list whose validation stops at the first wrong item: one may have thousands."""
Messages = Annotated[list[T], _FailFast(), Field(max_length=MOST_MESSAGES)]
FOUND_CHARS = 80
MESSAGE_CHARS = 1000
WORDING = (
    ("Input should be", "must be"),
    ("List should have", "must have"),
    ("a valid array", "a list"),
    ("a valid integer", "an integer"),
    ("a valid string", "a text"),
    ("a valid ", "a "),
)
"""Phrases of pydantic's messages, and those of ours."""


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
"""The nesting depth of lists and objects that the parser accepts; it cannot be set."""
TOO_DEEP = "recursion limit exceeded"
"""The parser's message for a body that is nested too deep."""


def read_body(body: bytes, body_type: type[B]) -> B:
    """Parse a body as a dataclass of the dialect.

    Raises Declined (400), which names the field, the value and the expected one. Text that is no
    valid Unicode is repaired.
    """
    _check_size(body)
    try:
        return _validated(body, body_type)
    except ValidationError as error:
        repaired = replace_surrogates(body) if _is_no_json(error) else body
        if repaired is body:
            raise _declined(error, body) from None
    try:
        return _validated(repaired, body_type)
    except ValidationError as error:
        raise _declined(error, repaired) from None


def _validated(body: bytes, body_type: type[B]) -> B:
    value: B = _adapter_of(cast(Any, body_type)).validate_json(body)
    return value


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
    faults = [_fault_of(one, value) for one in errors]
    deepest = max(len(path) for path, _, _ in faults)
    path, _, found = next(one for one in faults if len(one[0]) == deepest)
    wanted = dict.fromkeys(expected for at, expected, _ in faults if at == path)
    place = _field_name(path)
    msg = clean_text(f"{place or 'the body'} {' or '.join(wanted)}{found}", MESSAGE_CHARS)
    return Declined(400, "invalid_request_error", msg, param=place or None)


def _no_json(words: str) -> str:
    """Return the message for a body that cannot be parsed as JSON."""
    _, deep, place = words.partition(TOO_DEEP)
    if not deep:
        return f"the body is no JSON: {words}"
    return f"the body is nested more than {MOST_DEEP} deep{place}; send JSON that is flatter"


def _fault_of(error: ErrorDetails, body: object) -> tuple[Path, str, str]:
    """Return the path of an error, the expected value, and the value found."""
    path = _path(error["loc"], body, missing=error["type"] == "missing")
    found = f", found {_found(error['input'])}"
    if error["type"] == "missing":
        return path, "is missing", ""
    if not error["type"].startswith("union_tag"):
        return path, _our_wording(error["msg"]), found
    discriminator = error["ctx"]["discriminator"].strip("'")
    # The discriminator of items whose type may be left out is a function.
    tag = "type" if discriminator.endswith("()") else discriminator
    if error["type"] == "union_tag_not_found":
        return (*path, tag), "is missing", ""
    expected = f"must be one of {error['ctx']['expected_tags']}"
    return (*path, tag), expected, f", found {_found(error['ctx']['tag'])}"


def _our_wording(message: str) -> str:
    for theirs, ours in WORDING:
        message = message.replace(theirs, ours)
    return message


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


def _field_name(path: Path) -> str:
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    return text.removeprefix(".")


def _found(value: object) -> str:
    if isinstance(value, str | bytes):
        return clean_text(repr(value[:FOUND_CHARS]))
    return {dict: "an object", list: "a list", type(None): "null"}.get(
        type(value), clean_text(repr(value), FOUND_CHARS)
    )
