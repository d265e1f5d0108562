"""Released schemas never change, and versions are compatible as their topic requires.

Brokers hold bytes of every released version: no test of today's schemas alone can see that they
were broken.
"""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from rollcall.schemas.avro_schemas import schema_text
from rollcall.schemas.messages import Event, TrainStep, Trajectory
from rollcall.schemas.topics import manifest
from tests.schemas.release import (
    FINGERPRINTS,
    RELEASE,
    RELEASED,
    complaints,
    fingerprints_of,
    levels,
    versions,
)
from tests.support.avro_messages import ON_TOPICS, WRITTEN, inlined

EACH_RECORD = pytest.mark.parametrize("record", ON_TOPICS, ids=lambda record: record.__name__)
EVERY_LEVEL = ["BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE"]
ROOT = RELEASED.parents[2]
Fields = list[dict[str, Any]]


def fields_after(record: str, change: Callable[[Fields], object]) -> dict[str, dict[str, Any]]:
    """All .avsc as they lie there, but for one of them."""
    written = copy.deepcopy(WRITTEN)
    change(written[record]["fields"])
    return written


def field_of(fields: Fields, name: str) -> dict[str, Any]:
    return next(field for field in fields if field["name"] == name)


def without(name: str) -> Callable[[Fields], object]:
    return lambda fields: fields.remove(field_of(fields, name))


def plus(**field: Any) -> Callable[[Fields], object]:
    return lambda fields: fields.append(field)


def altered(field_name: str, **changes: Any) -> Callable[[Fields], object]:
    return lambda fields: field_of(fields, field_name).update(changes)


def with_branch(of: str, name: str) -> Callable[[Fields], object]:
    return lambda fields: field_of(fields, of)["type"].append(
        {"type": "record", "name": name, "fields": []}
    )


def with_symbol(field_name: str, symbol: str) -> Callable[[Fields], object]:
    return lambda fields: field_of(fields, field_name)["type"]["symbols"].append(symbol)


def complaints_about(
    record: type, changed: str, change: Callable[[Fields], object], level: str
) -> list[str]:
    now = schema_text(record)
    then = json.dumps(inlined(record, fields_after(changed, change)))
    return complaints([now, then], level)


@EACH_RECORD
def test_the_current_schema_is_the_newest_released_one(record: type) -> None:
    released = versions(record.__name__)

    assert released, f"{record.__name__} was never released; {RELEASE}"
    assert released[-1] == schema_text(record), (
        f"{record.__name__} differs from its released v{len(released)}; if that is meant, "
        f"{RELEASE} and commit what it writes, never an edit of what lies there"
    )


@pytest.mark.parametrize("seed", ["1", "2"])
def test_the_schema_text_does_not_depend_on_hash_seeds(seed: str) -> None:
    code = (
        "from rollcall.schemas import avro_schemas, messages; "
        "print(avro_schemas.schema_text(messages.TrainStep))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed}

    printed = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, check=True, capture_output=True
    )

    assert printed.stdout.decode().strip() == schema_text(TrainStep)


@EACH_RECORD
def test_all_released_versions_are_compatible_as_the_manifest_requires(record: type) -> None:
    texts = [*versions(record.__name__), schema_text(record)]

    assert complaints(texts, levels()[record.__name__]) == []


def test_released_files_never_change() -> None:
    pinned = json.loads(FINGERPRINTS.read_text())

    found = {
        path.stem: fingerprints_of(path.read_text().removesuffix("\n"))
        for path in RELEASED.glob("*.avsc")
    }

    assert found == pinned


def test_exactly_the_records_of_topics_are_released_without_gaps() -> None:
    counted = {
        f"{r.__name__}.v{n}" for r in ON_TOPICS for n in range(1, len(versions(r.__name__)) + 1)
    }

    assert {path.stem for path in RELEASED.glob("*.avsc")} == counted


def test_a_record_of_two_topics_has_one_compatibility_level() -> None:
    for record in ON_TOPICS:
        assert len({spec.compatibility for spec in manifest() if spec.record is record}) == 1


@EACH_RECORD
def test_schemas_inlined_from_files_equal_those_the_codec_registers(record: type) -> None:
    ours = fingerprints_of(json.dumps(inlined(record, WRITTEN)))

    assert ours["canonical"] == fingerprints_of(schema_text(record))["canonical"]


@EACH_RECORD
@pytest.mark.parametrize("level", EVERY_LEVEL)
def test_a_new_field_with_a_default_is_accepted_by_every_level(record: type, level: str) -> None:
    new = plus(name="brand_new", type="string", default="")

    assert complaints_about(record, record.__name__, new, level) == []


@EACH_RECORD
def test_a_new_field_without_a_default_is_refused(record: type) -> None:
    new = plus(name="brand_new", type="string")

    (complaint,) = complaints_about(record, record.__name__, new, levels()[record.__name__])

    assert "v2 after v1, new reads old" in complaint
    assert "brand_new" in complaint


@pytest.mark.parametrize(
    ("changed", "change"),
    [
        ("Trajectory", altered("model_calls", type="string")),
        ("Trajectory", altered("first_offset", type="int")),
        ("Trajectory", altered("attempt", type="long")),
        ("Trajectory", altered("rollout_id", name="id")),
        ("Trajectory", without("failures")),
        ("Sequence", altered("token_ids", type={"type": "array", "items": "int"})),
        ("Sequence", without("versions")),
        ("StepTaken", plus(name="brand_new", type="long")),
        ("Claim", altered("uri", type=["null", "string"])),
        ("RolloutRequest", altered("task", type="string")),
    ],
)
def test_a_change_unreadable_for_one_side_is_refused_on_trajectories(
    changed: str, change: Callable[[Fields], object]
) -> None:
    assert complaints_about(Trajectory, changed, change, levels()["Trajectory"])


@pytest.mark.parametrize("level", EVERY_LEVEL)
def test_a_new_enum_symbol_is_accepted_by_every_level(level: str) -> None:
    new = with_symbol("status", "brand_new")

    assert complaints_about(Trajectory, "Trajectory", new, level) == []


def test_a_new_event_kind_is_backward_compatible_only() -> None:
    new = with_branch("body", "BrandNew")

    assert levels()["Event"] == "BACKWARD_TRANSITIVE"
    assert complaints_about(Event, "Event", new, "BACKWARD_TRANSITIVE") == []
    assert complaints_about(Event, "Event", new, "FULL_TRANSITIVE")


def test_removing_an_event_kind_is_refused() -> None:
    gone = altered("body", type=field_of(WRITTEN["Event"]["fields"], "body")["type"][:-1])

    (complaint,) = complaints_about(Event, "Event", gone, levels()["Event"])

    assert "reader union lacking writer type: RECORD" in complaint


def test_a_third_version_must_be_compatible_with_the_first() -> None:
    now = schema_text(Trajectory)
    second = json.dumps(inlined(Trajectory, fields_after("Trajectory", without("code"))))
    back = plus(name="code", type="long", default=0)
    written = fields_after("Trajectory", without("code"))
    back(written["Trajectory"]["fields"])
    third = json.dumps(inlined(Trajectory, written))

    refused = complaints([now, second, third], "FULL_TRANSITIVE")

    assert [complaint.split(",")[0] for complaint in refused] == ["v3 after v1", "v3 after v1"]
