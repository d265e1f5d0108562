"""`rollcall chaos`: its parts one by one, and a short complete run."""

import json
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import settings as limits
from hypothesis import strategies as st

from rollcall.compose.chaos import workload
from rollcall.compose.chaos.faults import (
    CLOCK,
    CUTS,
    KILL,
    KINDS,
    PAUSE,
    ROLES,
    Fault,
    kills,
    mixed,
)
from rollcall.compose.chaos.hosted_figures import HostedFigures
from rollcall.compose.chaos.outcome import ChaosOutcome, plain, table
from rollcall.compose.chaos.plan import ChaosPlan
from rollcall.compose.chaos.proxy import HOST, Ports, Proxy, listeners
from rollcall.compose.chaos.watch import ON_THE_WIRE_MS, FaultRecovery
from rollcall.compose.services import embedded
from rollcall.compose.services.service_process import free_port
from rollcall.inference.scripted import ScriptedEngine
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import ModelCall, Sampling
from tests.support.chaos_command import chaos
from tests.support.command_line import call, options
from tests.support.rig import Rig
from tests.support.tiers import examples
from tests.support.waiting import until

# The door


def test_wrong_input_is_refused_with_one_line_before_anything_runs(tmp_path: Path) -> None:
    with chaos("--minutes", "1", "--kill", "agents,model", cwd=tmp_path) as run:
        _, said = run.communicate(timeout=60)

    assert run.returncode == 2
    assert said == "rollcall: unknown role 'model'; did you mean 'models'?\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"minutes": 1, "kill": "nobody"}, "unknown role 'nobody'"),
        ({"minutes": 1, "kill": ","}, "--kill names nobody"),
        ({"minutes": 0}, "--minutes is 0; it must be more than 0"),
        ({"kills": -1}, "--kills is -1; it must be more than 0"),
        ({"minutes": 1, "rollouts": 0}, "--rollouts is 0"),
        ({"minutes": 1, "kills": 3}, "either --minutes"),
        ({"minutes": 1, "beside": Path("nowhere.whl")}, "nowhere.whl: there is no such file"),
        ({}, "either --minutes"),
        ({"minutes": 1, "json": Path("nowhere/figures.json")}, "there is no directory"),
        ({"minutes": 1, "keep": Path(__file__).parent}, "already and not empty"),
        ({"minutes": 1, "keep": Path(__file__)}, "already and is no directory"),
    ],
)
def test_impossible_options_are_refused(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Refused, match=complaint):
        call(None, "chaos", *options(**given))


# The schedule


VICTIMS = ChaosPlan(1, ROLES, minutes=1).victims()


@limits(max_examples=examples(20))
@given(st.integers())
def test_one_seed_gives_one_schedule(seed: int) -> None:
    again = [mixed(seed, VICTIMS, seconds=600, every_s=4, session_s=6) for _ in range(2)]

    assert again[0] == again[1]
    assert again[0] != mixed(seed + 1, VICTIMS, seconds=600, every_s=4, session_s=6)
    assert kills(seed, VICTIMS, count=50, every_s=0.2) == kills(
        seed, VICTIMS, count=50, every_s=0.2
    )


@limits(max_examples=examples(30))
@given(st.integers(), st.sets(st.sampled_from(ROLES), min_size=1), st.floats(20, 2000))
def test_faults_hit_only_the_selected_roles_in_their_own_ways(
    seed: int, roles: set[str], seconds: float
) -> None:
    plan = ChaosPlan(seed, [role for role in ROLES if role in roles], minutes=seconds / 60)
    faults, victims = plan.faults(), plan.victims()

    assert faults == sorted(faults, key=lambda fault: fault.at_s)
    assert all(fault.victim in victims[fault.role] for fault in faults)
    assert all(fault.kind in KINDS[fault.role] for fault in faults)
    assert all(fault.at_s < seconds for fault in faults)


KILLED = {role for role in ROLES if KILL in KINDS[role]}


@limits(max_examples=examples(20))
@example(seed=-5412026)  # its faults come late
@given(st.integers())
def test_short_run_includes_all_roles_all_cuts_and_a_clock_fault(seed: int) -> None:
    faults = ChaosPlan(seed, ROLES, minutes=0.5).faults()

    assert {fault.role for fault in faults if fault.kind == KILL} == KILLED
    assert {fault.role for fault in faults} == set(ROLES)
    assert {*CUTS, CLOCK} < {fault.kind for fault in faults}


@limits(max_examples=examples(20))
@given(st.integers(), st.integers(1, 2000))
def test_soak_consists_of_the_given_number_of_sigkills(seed: int, count: int) -> None:
    faults = ChaosPlan(seed, ROLES, kills=count).faults()

    assert Counter(fault.kind for fault in faults) == {KILL: count}


@limits(max_examples=examples(20))
@given(st.integers())
def test_registry_is_harmed_as_often_as_the_workers_of_a_group(seed: int) -> None:
    faults = ChaosPlan(seed, ROLES, minutes=1000).faults()  # so many that chance stays small

    harmed = Counter(fault.role for fault in faults)
    assert {KILL, PAUSE} == {fault.kind for fault in faults if fault.role == "registry"}
    assert harmed["registry"] > 0.8 * harmed["rewards"]


# The proxy


class Echo:
    """A server that echoes the bytes it receives."""

    def __init__(self) -> None:
        self.server = socket.create_server((HOST, 0))
        self.port: int = self.server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(client,), daemon=True).start()

    def _echo(self, client: socket.socket) -> None:
        with client:
            try:
                while chunk := client.recv(65536):
                    client.sendall(chunk)
            except OSError:
                return


@pytest.fixture
def links() -> Iterator[tuple[Proxy, dict[str, Ports]]]:
    """Two links to one echo."""
    echo = Echo()
    first = free_port([echo.port])
    ports = {"a": Ports(first, echo.port), "b": Ports(free_port([first]), echo.port)}
    proxy = Proxy(ports)
    yield proxy, ports
    proxy.close()
    echo.server.close()


def connect(ports: Ports) -> socket.socket:
    client = socket.create_connection((HOST, ports.entry), timeout=10)
    client.settimeout(10)
    return client


def says(client: socket.socket, text: bytes) -> bytes:
    client.sendall(text)
    return client.recv(65536)


def silent(client: socket.socket) -> bool:
    """Whether nothing comes for a while."""
    client.settimeout(0.3)
    try:
        return client.recv(65536) is None
    except TimeoutError:
        return True
    finally:
        client.settimeout(10)


def gone(client: socket.socket) -> bool:
    """Whether the other side ends the connection, orderly or not."""
    try:
        return client.recv(65536) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(("to_broker", "to_client"), [(True, True), (True, False), (False, True)])
def test_cut_link_delivers_its_held_back_bytes_after_healing(
    links: tuple[Proxy, dict[str, Ports]], to_broker: bool, to_client: bool
) -> None:
    proxy, ports = links
    with connect(ports["a"]) as cut, connect(ports["b"]) as other:
        assert says(cut, b"before") == b"before"

        proxy.cut("a", to_broker=to_broker, to_client=to_client)
        cut.sendall(b"meanwhile")
        assert silent(cut)
        assert says(other, b"whole") == b"whole"

        proxy.heal("a")
        assert cut.recv(65536) == b"meanwhile"


def test_dropped_link_resets_its_connections_and_accepts_new_ones(
    links: tuple[Proxy, dict[str, Ports]],
) -> None:
    proxy, ports = links
    with connect(ports["a"]) as dropped:
        assert says(dropped, b"before") == b"before"
        proxy.drop("a")
        assert gone(dropped)
    with connect(ports["a"]) as again:
        assert says(again, b"after") == b"after"


def test_missing_broker_appears_as_a_closed_connection(
    links: tuple[Proxy, dict[str, Ports]],
) -> None:
    _, ports = links
    nobody = Ports(free_port([ports["a"].entry]), free_port([]))
    proxy = Proxy({"a": nobody})
    with connect(nobody) as client:
        assert gone(client)
    proxy.close()


def test_every_link_has_a_listener_that_advertises_its_entry() -> None:
    found = listeners(1, 2, {"agents-1": Ports(3, 4), "models-1": Ports(5, 6)})

    assert found["listeners"].split(",")[2:] == [f"LINK0://{HOST}:4", f"LINK1://{HOST}:6"]
    assert found["advertised.listeners"] == (
        f"PLAINTEXT://{HOST}:1,LINK0://{HOST}:3,LINK1://{HOST}:5"
    )


# The workload


def test_workload_has_rollouts_of_every_kind() -> None:
    requests = [workload.request(7, number) for number in range(1000)]
    words = [word for number in range(1000) if (word := workload.cancel(7, number))]

    assert requests == [workload.request(7, number) for number in range(1000)]
    agents = {request.agent for request in requests}
    assert agents == {*workload.AGENTS, workload.AGENT_OF_OTHERS}
    assert len({request.rollout_id for request in requests}) == 1000
    assert set(Counter(request.group_id for request in requests).values()) == {workload.GROUP}
    assert {bool(word.group_id) for word in words} == {True, False}


def test_workload_ends_every_rollout_in_memory() -> None:
    rig = Rig(partitions=2, policies=(workload.POLICY,))
    crew = [
        rig.agents("agents-1"),
        rig.models(ScriptedEngine(workload.POLICY, workload.script("models-1")), "models-1"),
        rig.environments("environments-1"),
    ]
    for number in range(60):
        rig.ask(workload.request(7, number, hosts=False), number % 2)

    def ended() -> bool:
        for loop in crew:
            loop.turn(0.0)
        return len(rig.trajectories()) >= 60

    until(ended, 30, lambda: f"{len(rig.trajectories())} of 60 ended")
    assert len({trajectory.rollout_id for trajectory in rig.trajectories()}) == 60


def test_call_duration_depends_on_its_seed() -> None:
    now = [0.0]
    engine = workload.UnhurriedEngine("p", workload.script("m"), clock=lambda: now[0])
    call = made_call()
    engine.add(call)

    assert engine.busy()
    assert engine.step() == []
    now[0] = workload.delay_s(call)
    assert [answer.call for answer in engine.step()] == [call]
    assert not engine.busy()

    engine.add(call)
    engine.abort(call.rollout_id, call.attempt)
    assert not engine.busy()


def test_expired_call_is_returned_only_if_it_has_not_begun() -> None:
    now = [0.0]
    engine = workload.UnhurriedEngine("p", workload.script("m"), clock=lambda: now[0])
    calls = [replace(made_call(), seed=seed, not_after_ms=1000) for seed in range(20)]
    for each in calls:
        engine.add(each)

    assert engine.expire(1000) == []
    late = engine.expire(1001)
    now[0] = 60.0

    assert {call.seed for call in late} == {c.seed for c in calls if workload.queues(c)}
    assert 0 < len(late) < len(calls)
    assert {a.call.seed for a in engine.step()} == {c.seed for c in calls} - {c.seed for c in late}
    assert engine.expire(1001) == []
    assert not engine.busy()


def made_call() -> ModelCall:
    return ModelCall(
        rollout_id="r",
        attempt=1,
        position=0,
        tries=0,
        command_id=b"c",
        body_digest=b"d",
        answer_partition=0,
        not_after_ms=0,
        kind="sample",
        policy_id="p",
        sequence=0,
        messages=(),
        sampling=Sampling(),
        seed=1,
    )


# The figures


def fault(role: str, kind: str = KILL) -> Fault:
    return Fault(0.0, kind, role, f"{role}-1", 0.0)


def test_recovery_ends_when_all_partitions_of_the_victim_progress() -> None:
    progress = FaultRecovery(fault("agents"), 1000, "agents", {0, 1})

    progress.seen("agents", 0, 1000 + ON_THE_WIRE_MS - 1)
    progress.seen("models", 1, 2000)
    progress.seen("agents", 2, 2000)
    progress.seen("agents", 0, 7000)
    assert progress.took_s is None
    progress.seen("agents", 1, 5000)

    assert progress.took_s == 6.0


OUTCOME = ChaosOutcome(
    seed=7,
    harmed=[(fault("agents"), 6.0), (fault("agents"), 7.0), (fault("broker", "pause"), None)],
    accepted=1000,
    ended=1000,
    lost=0,
    doubled=0,
    repeated=3,
    breaches=0,
    seconds=60.0,
    hosted=HostedFigures(30, restarts=4, diverged=1),
)


def test_figures_match_the_table() -> None:
    found = plain(OUTCOME)

    assert found["ok"]
    assert found["faults"] == 3
    assert found["faults_by_kind"] == {"kill agents": 2, "pause broker": 1}
    assert (found["recovery_p50_s"], found["recovery_max_s"]) == (6.5, 7.0)
    cells = [list(column.cells) for column in table(OUTCOME).columns]
    assert cells[4][:2] == ["7.0 s", "-"]
    assert dict(zip(cells[0], cells[2], strict=True))["external work repeated"] == "3"
    assert cells[2][-5:] == ["30", "4", "0", "1", "0"]


@pytest.mark.parametrize("wrong", ["lost", "doubled", "breaches", "ended"])
def test_any_nonzero_error_count_is_not_ok(wrong: str) -> None:
    assert OUTCOME.ok
    assert not replace(OUTCOME, **{wrong: 1}).ok


def test_repeated_call_of_an_answered_request_is_not_ok() -> None:
    assert not replace(OUTCOME, hosted=HostedFigures(30, asked_again=1)).ok


# All of it


@pytest.mark.thorough
@pytest.mark.broker
@pytest.mark.timeout(300)
def test_short_run_loses_and_doubles_nothing(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    with chaos(
        "--minutes", "0.4", "--seed", "14", "--json", str(figures), "--rollouts", "600",
        "--kill", "agents,models,environments,rewards,processes,boxes,broker,registry",
        cwd=tmp_path,
    ) as run:  # fmt: skip
        said, complained = run.communicate(timeout=280)

    assert run.returncode == 0, said + complained
    found = json.loads(figures.read_text())
    assert found["accepted"] == found["ended"] == 600
    assert found["lost"] == found["doubled"] == found["breaches"] == 0
    assert found["faults"] == sum(found["faults_by_kind"].values()) >= 8
    assert "kill broker" in found["faults_by_kind"]
    assert found["hosted"]["rollouts"] > 10
    assert found["hosted"]["asked_again"] == 0
    assert found["boxes"]["rollouts"] > 10
    assert found["boxes"]["wrong"] == found["boxes"]["boxes_left"] == 0
    assert any(kind.startswith(CUTS) for kind in found["faults_by_kind"])
    assert 0 < found["recovery_p50_s"] <= found["recovery_max_s"]
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"], "its log is removed"


@pytest.mark.broker
@pytest.mark.timeout(300)
def test_interrupted_run_takes_everything_down(tmp_path: Path) -> None:
    with chaos("--minutes", "5", "--kill", "agents", "--keep", "kept", cwd=tmp_path) as run:
        logs = tmp_path / "kept" / "logs"

        def started() -> list[str]:
            assert run.poll() is None
            return sorted(path.name for path in logs.glob("*.log"))

        until(lambda: len(started()) >= 9, 120, lambda: f"only {started()} were started")
        run.send_signal(signal.SIGINT)
        said, _ = run.communicate(timeout=150)

    assert run.returncode == 130
    assert "everything was taken down" in said
    assert embedded.endpoints(tmp_path / "kept") is None

    def left() -> list[Path]:
        return [
            path for path in Path("/proc").glob("[0-9]*") if str(tmp_path) in environment_of(path)
        ]

    # Whoever was just being started dies with the conductor
    until(lambda: not left(), 10, lambda: f"{left()} still run")


def environment_of(process: Path) -> str:
    """The environment that a process was started with; empty when it has ended."""
    try:
        return (process / "environ").read_text(errors="replace")
    except OSError:
        return ""
