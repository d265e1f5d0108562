"""Journals of every released version, folded by today's code: no difference is allowed."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.errors import UnknownSchema
from rollcall.schemas.messages import Event, Trajectory
from tests.journals.programs import DICED
from tests.journals.record import HERE, RECORD, digests, folder
from tests.schemas.release import versions
from tests.support.journals import Entry, fold, world_of

JOURNALS = sorted(HERE.glob("v*/*.json"))


class Recorded(LocalRegistry):
    """The schema ids that a journal was written under."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        super().__init__()
        self.texts = texts

    def schema_of(self, schema_id: int) -> str:
        try:
            return self.texts[str(schema_id)]
        except KeyError:
            raise UnknownSchema(str(schema_id)) from None


def entries_of(journal: dict[str, Any]) -> list[Entry]:
    codec = Codec(Recorded(journal["schemas"]))
    return [
        Entry(offset, at_ms, codec.decode(base64.b64decode(value), Event))
        for offset, at_ms, _, value in journal["records"]
    ]


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_recorded_journal_folds_to_its_recorded_trajectories(path: Path) -> None:
    journal = json.loads(path.read_text())

    _, effects = fold(entries_of(journal), world_of(DICED))

    found = digests((effect for _, effect in effects), journal["trajectory_schema"])
    assert [list(each) for each in found] == journal["trajectories"]
    assert found


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_recorded_journals_use_released_schemas(path: Path) -> None:
    journal = json.loads(path.read_text())

    number = int(path.parent.name.removeprefix("v"))
    assert set(journal["schemas"].values()) == {versions("Event")[number - 1]}
    assert journal["trajectory_schema"] in versions("Trajectory")


def test_every_released_version_of_events_has_its_journals() -> None:
    there = {path.parent.name for path in JOURNALS}

    assert there == {f"v{n}" for n in range(1, len(versions("Event")) + 1)}, RECORD
    assert folder().name in there


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_only_journals_with_times_give_trajectories_with_timers(path: Path) -> None:
    journal = json.loads(path.read_text())

    _, effects = fold(entries_of(journal), world_of(DICED))

    timed = [effect.timers for _, effect in effects if isinstance(effect, Trajectory)]
    assert timed
    assert any(timed) == (path.stem == "timed")
