"""A TOML table whose keys are known: what settings and recipes are made of."""

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict

from schemas.errors import Refused
from schemas.names import unknown


class StrictTable(BaseModel):
    """Frozen, and refuses a key that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def unknown_key(root: Any, word: str, place: list[str]) -> Refused:
    """What to say of a key below a model that nothing is called, with the nearest that is."""
    model = root
    for part in place[:-1]:
        # A table of tables has names of its user's for keys.
        named = not hasattr(model, "model_fields")
        model = get_args(model)[1] if named else model.model_fields[part].annotation
    known = [".".join([*place[:-1], name]) for name in model.model_fields]
    return unknown(word, ".".join(place), known)
