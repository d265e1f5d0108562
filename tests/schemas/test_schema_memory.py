"""A schema id that changes its meaning is noticed, in one process and by the next."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.avro_schemas import schema_text
from schemas.codec import Codec, LocalRegistry
from schemas.errors import RegistryDiffers
from schemas.messages import Control
from schemas.schema_memory import SchemaMemory

CANCEL = Control("cancel", rollout_id="r1", group_id="g1")


def swapped(text: str) -> str:
    """The same record with two of its texts in each other's places."""
    schema = json.loads(text)
    fields = schema["fields"]
    one, other = [n for n, field in enumerate(fields) if field["type"] == "string"][1:3]
    fields[one], fields[other] = fields[other], fields[one]
    return json.dumps(schema)


def registry(*texts: str) -> LocalRegistry:
    made = LocalRegistry()
    for text in texts:
        made.writer_id("t", text)
    return made


OURS = schema_text(Control)
THEIRS = swapped(OURS)


def test_ids_that_changed_places_are_noticed_by_a_worker_that_begins_anew(tmp_path: Path) -> None:
    # Given a record that was written while the ids were as they are meant to be
    file = tmp_path / "state" / "ids.txt"
    writer = Codec(registry(THEIRS, OURS), memory=SchemaMemory(lambda: file))
    value = writer.encode("t", CANCEL)
    assert writer.decode(value, Control) == CANCEL

    # When another process is answered by a registry that dealt them anew
    reader = Codec(registry(OURS, THEIRS), memory=SchemaMemory(lambda: file))

    # Then it neither reads nor writes, and says which id and what to do
    with pytest.raises(RegistryDiffers, match="schema id 2 is another schema than before"):
        reader.decode(value, Control)

    # And goes on as soon as the registry is right again
    reader.registry = registry(THEIRS, OURS)
    assert reader.decode(value, Control) == CANCEL


def test_an_id_given_to_another_record_is_not_written_under_either(tmp_path: Path) -> None:
    file = tmp_path / "ids.txt"
    value = b"\0\0\0\0\1" + Codec(registry(OURS)).encode("t", CANCEL)[5:]
    Codec(registry(THEIRS), memory=SchemaMemory(lambda: file)).decode(value, Control)

    with pytest.raises(RegistryDiffers):
        Codec(registry(OURS), memory=SchemaMemory(lambda: file)).encode("t", CANCEL)


def test_how_a_registry_spells_a_schema_does_not_matter(tmp_path: Path) -> None:
    file = tmp_path / "ids.txt"
    for text in (OURS, OURS.replace(",", " , "), json.dumps(json.loads(OURS), indent=4)):
        codec = Codec(registry(text), memory=SchemaMemory(lambda: file))
        assert codec.decode(b"\0\0\0\0\1" + Codec(registry(OURS)).encode("t", CANCEL)[5:], Control)

    assert len(file.read_text().splitlines()) == 1


@given(st.binary(max_size=200))
def test_a_file_that_anybody_wrote_counts_for_what_can_be_read_of_it(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    file = tmp_path_factory.mktemp("ids") / "ids.txt"
    file.write_bytes(data + b"\n7 " + b"a" * 32)
    memory = SchemaMemory(lambda: file)

    memory.tie(9, "new")

    with pytest.raises(RegistryDiffers, match=str(file)):
        memory.tie(7, "x")


def test_where_nothing_can_be_kept_it_goes_on_with_what_the_process_knows(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    memory = SchemaMemory(lambda: tmp_path / "file" / "ids.txt")

    memory.tie(1, "a")
    memory.tie(1, "a")

    with pytest.raises(RegistryDiffers):
        memory.tie(1, "b")
