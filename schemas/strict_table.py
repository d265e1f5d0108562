"""A TOML table that refuses unknown keys, the base of settings, recipes and their tables."""

from collections.abc import Iterable
from types import NoneType
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict

from rollcall.schemas.errors import Refused
from rollcall.schemas.names import unknown_name


class StrictTable(BaseModel):
    """A frozen model that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def unknown_key(root: Any, word: str, place: list[str], also: Iterable[str] = ()) -> Refused:
    """Return the error for an unknown key below a model, with the nearest known key.

    `also` are other keys that the model reads.
    """
    model = root
    for part in place[:-1]:
        # The keys of a table of tables are chosen by the user.
        named = not hasattr(model, "model_fields")
        model = get_args(model)[1] if named else model.model_fields[part].annotation
        if NoneType in get_args(model):  # a table that may be absent
            model = get_args(model)[0]
    known = [".".join([*place[:-1], name]) for name in model.model_fields]
    return unknown_name(word, ".".join(place), [*known, *also])
