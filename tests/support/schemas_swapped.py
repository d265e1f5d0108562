"""Schemas of one record that differ in the order of their fields, and registries that mix them up.

A value that is read by another one of them than it was written with says something else, and no
error tells.
"""

import json
from collections.abc import Iterable
from itertools import combinations

from rollcall.schemas.avro_schemas import schema_text
from rollcall.schemas.codec import LocalRegistry
from rollcall.schemas.messages import Control

OURS = schema_text(Control)
CANCEL = Control("cancel", rollout_id="r1", group_id="g1")


def swapped(text: str, one: int = 1, other: int = 2) -> str:
    """The same record with two of its texts in each other's places."""
    schema = json.loads(text)
    fields = schema["fields"]
    texts = [n for n, field in enumerate(fields) if field["type"] == "string"]
    one, other = texts[one], texts[other]
    fields[one], fields[other] = fields[other], fields[one]
    return json.dumps(schema)


THEIRS = swapped(OURS)
VERSIONS = (OURS, *(swapped(OURS, *pair) for pair in combinations(range(3), 2)))
"""Ours first."""


def registry(texts: Iterable[str]) -> LocalRegistry:
    """A registry that deals the ids 1, 2 and so on to schemas."""
    made = LocalRegistry()
    for text in texts:
        made.writer_id("t", text)
    return made
