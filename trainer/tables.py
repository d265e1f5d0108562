"""Tables of a recipe that become options: their keys are the fields, and no others."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Self

from schemas import names


class Table:
    """Made from a table whose keys are the fields of a dataclass."""

    __slots__ = ()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """From a recipe, lists as tuples; a key that is none is refused. Raises Refused."""
        known = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        for key in values:
            if key not in known:
                where = f"key of {cls.__name__.lower()}"
                raise names.unknown(where, key, known)
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
