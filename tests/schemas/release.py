"""Freeze what the schemas of topics are now, as the next version of each that has changed.

Run from the repository's root: `.venv/bin/python -m tests.schemas.release`. Nothing is written
where a change breaks the compatibility that the manifest demands of the topic. What was released
stays as it is: brokers hold bytes of it.
"""

import hashlib
import json
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import avro.schema
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from fastavro.schema import fingerprint, to_parsing_canonical_form

from rollcall.schemas.avro_schemas import schema_text
from rollcall.schemas.topics import manifest
from tests.support.avro_messages import ON_TOPICS, encoded, one_of_each_kind, plain

HERE = Path(__file__).parent
RELEASED = HERE / "released"
FINGERPRINTS = RELEASED / "fingerprints.json"
GOLDEN = HERE / "golden.json"
RELEASE = "run `.venv/bin/python -m tests.schemas.release`"
LEVELS = {
    "BACKWARD_TRANSITIVE": ("new reads old",),
    "FORWARD_TRANSITIVE": ("old reads new",),
    "FULL_TRANSITIVE": ("new reads old", "old reads new"),
}


def levels() -> dict[str, str]:
    """The compatibility that the manifest demands, by record."""
    return {spec.record.__name__: spec.compatibility for spec in manifest() if spec.record}


def versions(record: str) -> list[str]:
    """The released texts of a record, oldest first."""
    found: list[str] = []
    while (path := path_of(record, len(found) + 1)).exists():
        found.append(path.read_text().removesuffix("\n"))
    return found


def path_of(record: str, version: int) -> Path:
    return RELEASED / f"{record}.v{version}.avsc"


def complaints(texts: list[str], level: str) -> list[str]:
    """What a level forbids about each pair of versions, oldest first; empty when all is well."""
    found = []
    for (older, old), (newer, new) in combinations(enumerate(map(avro.schema.parse, texts), 1), 2):
        for demand in LEVELS[level]:
            reader, writer = (new, old) if demand == "new reads old" else (old, new)
            result = ReaderWriterCompatibilityChecker().get_compatibility(reader, writer)
            if result.compatibility is not SchemaCompatibilityType.compatible:
                why = "; ".join(sorted(result.messages))
                where = ", ".join(sorted(result.locations))
                found.append(f"v{newer} after v{older}, {demand}: {why} at {where}")
    return found


def fingerprints_of(text: str) -> dict[str, str]:
    """Of what readers and writers must agree on, and of the whole text with defaults and words."""
    canonical = to_parsing_canonical_form(json.loads(text))
    return {
        "canonical": fingerprint(canonical, "SHA-256"),
        "text": hashlib.sha256(text.encode()).hexdigest(),
    }


def golden_of(record: str, version: int) -> dict[str, Any]:
    """Bytes and meaning of one message of each kind, under names such as Event-CallFailed.v1."""
    return {
        f"{kind}.v{version}": {
            "schema": f"{record}.v{version}",
            "value": encoded(message).hex(),
            "message": plain(message),
        }
        for kind, message in one_of_each_kind().items()
        if type(message).__name__ == record
    }


def main() -> int:
    RELEASED.mkdir(exist_ok=True)
    pinned = json.loads(FINGERPRINTS.read_text()) if FINGERPRINTS.exists() else {}
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    wrong = 0
    for record in ON_TOPICS:
        name, now = record.__name__, schema_text(record)
        before = versions(name)
        if before and before[-1] == now:
            continue
        broken = complaints([*before, now], levels()[name])
        wrong += len(broken)
        for complaint in broken:
            print(f"{name} is not {levels()[name]}: {complaint}", file=sys.stderr)
        if broken:
            continue
        version = len(before) + 1
        path_of(name, version).write_text(f"{now}\n")
        pinned[f"{name}.v{version}"] = fingerprints_of(now)
        golden |= golden_of(name, version)
        print(f"released {name}.v{version}")
    FINGERPRINTS.write_text(json.dumps(pinned, indent=1, sort_keys=True) + "\n")
    lines = (f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in golden.items())
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
