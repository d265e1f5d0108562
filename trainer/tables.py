"""Conversion of a recipe's tables to options, whose fields are the allowed keys."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Self

from rollcall.schemas import names


class Table:
    """A base of dataclasses that are made from a table with their fields as keys."""

    __slots__ = ()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Build it from a recipe's table, lists as tuples. Raises Refused for an unknown key."""
        known = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        for key in values:
            if key not in known:
                where = f"key of {cls.__name__.lower()}"
                raise names.unknown(where, key, known)
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
