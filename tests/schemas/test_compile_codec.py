"""The codec is compiled if possible, and works without it."""

from pathlib import Path

import pytest

from rollcall.schemas.avro_cython import source
from rollcall.schemas.compile_codec import CannotCompile, compile_codec
from rollcall.schemas.message_code import made_from, records
from tests.support.avro_messages import RECORDS


def test_without_a_compiler_the_codec_stays_plain_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("rollcall.schemas.compile_codec.find_spec", lambda name: None)

    with pytest.raises(CannotCompile, match="no ziglang"):
        compile_codec(tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_the_compiled_source_reads_and_writes_every_record() -> None:
    text = source(records(), made_from())

    for record in RECORDS:
        assert f"messages.{record.__name__}: read_{record.__name__}" in text
        assert f"messages.{record.__name__}: write_{record.__name__}" in text
    assert f"MADE_FROM = {made_from()!r}" in text
