"""A damaged state file gives one line with its name, and no traceback."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollcall.compose.files import MOST_BYTES, read_state
from rollcall.compose.runs import run_folder
from rollcall.compose.runs.run_folder import BegunRun
from rollcall.compose.services.service_process import RECORD, ServiceProcess, on_record
from rollcall.schemas.errors import Refused
from tests.support.tiers import examples

WHOLE = json.dumps({"run_id": "r", "policy_id": "p", "seed": 1, "starts": [["t", 0, 5]]}).encode()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FEW = settings(
    max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("length", range(len(WHOLE)))
def test_truncated_file_is_refused_by_name(tmp_path: Path, length: int) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(WHOLE[:length])

    with pytest.raises(Refused, match=r"run\.json is not as it was written") as refused:
        read_state(path, BegunRun)
    assert "\n" not in str(refused.value)


@FEW
@given(st.binary() | JSON.map(lambda found: json.dumps(found).encode()))
def test_any_other_content_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)

    with pytest.raises(Refused, match=r"run\.json is not as it was written") as refused:
        read_state(path, BegunRun)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b'{"a":' * 100_000, b"1" * 10_000, b" " * (MOST_BYTES + 1)]
)
def test_deep_and_endless_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_bytes(content)

    with pytest.raises(Refused, match="not as it was written"):
        read_state(tmp_path / "run.json", BegunRun)


def test_valid_file_is_read_and_a_missing_one_gives_none(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(WHOLE)

    assert read_state(tmp_path / "run.json", BegunRun) == BegunRun("r", "p", 1, [("t", 0, 5)])
    assert read_state(tmp_path / "other.json", BegunRun) is None
    with pytest.raises(Refused, match="cannot be read: Is a directory"):
        read_state(tmp_path, BegunRun)


@pytest.mark.parametrize("content", ["", "{", '{"pid": 1}', "[]", '{"pid": "x", "started": 1}'])
def test_damaged_service_record_counts_as_none_and_is_logged(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ServiceProcess(1, "then", 9092, 9093).note(tmp_path)
    assert on_record(tmp_path) == ServiceProcess(1, "then", 9092, 9093)
    (tmp_path / RECORD).write_text(content)

    assert on_record(tmp_path) is None
    assert "process_record_unreadable" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["", "{", "[]", '{"run_id": "r"}'])
def test_damaged_run_file_is_refused_by_every_lookup(tmp_path: Path, content: str) -> None:
    directory = tmp_path / "runs" / "r"
    directory.mkdir(parents=True)
    (directory / run_folder.RUN_FILE).write_text(content)

    for call in (
        lambda: run_folder.load(directory),
        lambda: run_folder.all_of(tmp_path),
        lambda: run_folder.find(tmp_path, "r"),
    ):
        with pytest.raises(Refused, match=r"run\.json is not as it was written"):
            call()
