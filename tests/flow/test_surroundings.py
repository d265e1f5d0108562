"""A clock set back, ids dealt anew, a store away, a log cut off: `rollcall chaos`."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.compose.chaos import workload
from rollcall.compose.chaos.cut_log import cut_off
from rollcall.compose.chaos.faults import AROUND, STORE, USUAL, Fault
from rollcall.compose.chaos.plan import ChaosPlan
from rollcall.compose.chaos.surroundings import StoreVictim
from rollcall.compose.chaos.wrong_registry import WrongRegistry, rotated_ids
from rollcall.compose.cli.checks import EVERYBODY
from rollcall.schemas.errors import Refused, Unavailable
from rollcall.schemas.objects import ObjectStore
from rollcall.schemas.registry import HttpRegistry
from tests.support.chaos_command import chaos

AWAY = Fault(0.0, "away", STORE, STORE, 1.0)


def test_surroundings_are_harmed_by_default_but_not_beside_another_release(
    tmp_path: Path,
) -> None:
    wheel = tmp_path / "older.whl"
    wheel.touch()

    assert EVERYBODY.split(",") == list(USUAL)
    assert set(AROUND) <= {fault.role for fault in ChaosPlan(3, USUAL, minutes=0.5).faults()}
    assert not set(AROUND) & set(ChaosPlan(3, USUAL, minutes=1, beside=wheel).victims())
    with pytest.raises(Refused, match="clocks, ids cannot be killed; give --minutes"):
        ChaosPlan(3, ["clocks", "ids"], kills=3)


@given(st.sets(st.integers(1, 1000), min_size=2))
def test_reassigned_ids_are_a_permutation_without_fixed_points(ids: set[int]) -> None:
    given_, meant = rotated_ids(sorted(ids), 1), rotated_ids(sorted(ids), -1)

    assert set(given_) == set(given_.values()) == ids
    assert all(given_[each] != each and meant[given_[each]] == each for each in ids)


class Right(BaseHTTPRequestHandler):
    """A registry of two subjects."""

    def do_GET(self) -> None:
        path = self.path
        if path == "/subjects":
            self._say(["a", "b"])
        elif path.startswith("/subjects/"):
            self._say({"id": 1 if "/a/" in path else 2})
        else:
            self._say({"schema": f"schema {path.split('?')[0].rpartition('/')[2]}"})

    def do_POST(self) -> None:
        self._say({"subject": "a-value", "version": 1, "id": 1, "schema": "x"})

    def _say(self, what: object) -> None:
        said = json.dumps(what).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def right() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Right)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_wrong_registry_answers_each_id_with_another_schema(right: str) -> None:
    wrong = WrongRegistry(right)
    assert wrong.learn()
    ours, theirs = HttpRegistry(right), HttpRegistry(f"http://127.0.0.1:{wrong.port}")

    assert [ours.schema_of(n) for n in (1, 2)] == ["schema 1", "schema 2"]
    assert [theirs.schema_of(n) for n in (1, 2)] == ["schema 2", "schema 1"]
    assert (ours.id_of("a", "x"), theirs.id_of("a", "x")) == (1, 2)
    assert wrong.told == 3
    for registry in (ours, theirs):
        registry.close()
    wrong.close()


def test_missing_store_is_waited_for_and_keeps_its_identity(
    tmp_path: Path,
) -> None:
    # Given a store that bears the identity of its cluster, and a process that has not asked yet
    folder = tmp_path / "objects"
    store = ObjectStore(str(folder))
    store.bear("this")
    claim = store.put(b"heavy")
    victim = StoreVictim(folder)
    assert store.get(claim) == b"heavy"

    # When it is away, then every request to it can be repeated
    victim.begin(AWAY)
    for ask in (
        lambda: store.bears("this"),
        lambda: store.get(claim),
        lambda: store.put(b"more"),
        lambda: ObjectStore(str(folder)).put(b"more"),
    ):
        with pytest.raises(Unavailable):
            ask()

    # And it comes back with all that it held
    victim.end(AWAY)
    assert store.bears("this")
    assert not store.bears("another")
    assert store.get(claim) == b"heavy"


def test_some_requests_are_too_heavy_except_beside_another_release() -> None:
    heavy = [n for n in range(2000) if "heavy" in workload.request(7, n).task.environment_config]

    assert 0.5 < len(heavy) / (workload.HEAVY * 2000) < 2
    config = json.loads(workload.request(7, heavy[0]).task.environment_config)
    assert len(workload.Corridor(**config).open(1).text) > workload.HEAVY_BYTES
    assert "heavy" not in workload.request(7, heavy[0], hosts=False).task.environment_config


def batch(first: int, records: int) -> bytes:
    """The bytes of a batch of the given number of records, without their contents."""
    body = bytes(11) + (records - 1).to_bytes(4, "big") + bytes(40)
    return first.to_bytes(8, "big") + len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    ("first", "end", "torn", "left"),
    [
        (5, 9, 0, 2),
        (7, 9, 0, 3),
        (0, 9, 0, 0),
        (6, 9, 0, 4),  # no batch begins there
        (5, 7, 0, 4),  # others wrote behind it
        (5, 9, 1, 4),  # the last batch was being written
    ],
)
def test_partition_is_cut_at_a_batch_boundary_to_its_end(
    tmp_path: Path, first: int, end: int, torn: int, left: int
) -> None:
    batches = [batch(0, 3), batch(3, 2), batch(5, 2), batch(7, 2)]
    newest = tmp_path / "00000000000000000000.log"
    held = b"".join(batches)
    newest.write_bytes(held[: len(held) - torn])

    cut = cut_off(tmp_path, first, end)

    assert cut == (left < len(batches))
    assert newest.read_bytes() == b"".join(batches[:left])[: len(held) - torn]


@pytest.mark.thorough
@pytest.mark.broker
@pytest.mark.timeout(300)
def test_clock_registry_and_store_faults_lose_and_bury_nothing(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    with chaos(
        "--minutes", "0.4", "--seed", "27", "--json", str(figures), "--rollouts", "400",
        "--kill", "clocks,ids,store", cwd=tmp_path,
    ) as run:  # fmt: skip
        said, complained = run.communicate(timeout=280)

    assert run.returncode == 0, said + complained
    found = json.loads(figures.read_text())
    assert found["accepted"] == found["ended"] == 400
    assert found["lost"] == found["doubled"] == found["breaches"] == found["buried"] == 0
    assert found["misled"] > 0
    assert {"set back clocks", "dealt anew ids", "away store"} == set(found["faults_by_kind"])


@pytest.mark.thorough
@pytest.mark.broker
@pytest.mark.timeout(600)
def test_cut_log_is_named_by_a_worker_and_loses_no_rollout(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    with chaos(
        "--minutes", "0.4", "--seed", "27", "--json", str(figures), "--rollouts", "400",
        "--kill", "log", cwd=tmp_path,
    ) as run:  # fmt: skip
        said, complained = run.communicate(timeout=570)

    assert run.returncode == 0, said + complained
    found = json.loads(figures.read_text())
    assert found["cut_off"] > 0, found["not_cut"]
    assert found["silent"] == 0
    assert found["accepted"] == found["ended"] >= 400  # copies that stay are refused, and counted
    assert found["lost"] == found["doubled"] == found["breaches"] == found["buried"] == 0
    assert set(found["faults_by_kind"]) == {"cut off log"}
