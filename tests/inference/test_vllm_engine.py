"""Behaviour of vLLM as an engine beyond the contract, and the reasons to refuse a start."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from rollcall.inference import vllm_place
from rollcall.inference.vllm_engine import VllmEngine
from rollcall.inference.vllm_place import OWNER, require_vllm
from rollcall.schemas.errors import EngineDied, Refused
from rollcall.schemas.messages import ModelAnswered
from rollcall.schemas.packed import ids_of, logprobs_of
from tests.support.engines import left_out
from tests.support.policies import (
    after,
    body,
    call,
    logprobs,
    run,
    take,
    tokens,
    version_of,
    weighted,
)
from tests.support.processes_left import parent_of, running
from tests.support.vllm_cores import Cores
from tests.support.waiting import give_way, until

CORES = Cores()
IMPORT_S = 240.0
"""vLLM is imported in 15 s, and in minutes where others want the cores too."""


@pytest.fixture
def serving(lake: Path) -> Iterator[VllmEngine]:
    if find_spec("vllm") is None:
        left_out("vllm", "its engine; `make vllm` installs it")
    engine = VllmEngine("policy", lake, start=CORES.lend)
    take(engine, version_of(lake, 0))
    yield engine
    CORES.take_back()


@pytest.fixture(scope="module", autouse=True)
def _end_of_vllm() -> Iterator[None]:
    yield
    CORES.close()


@pytest.mark.vllm
def test_vllm_logprobs_match_a_full_forward_pass(serving: VllmEngine, lake: Path) -> None:
    model = weighted(lake, 0)
    calls = [call(f"r{n}", said="s1 " * (1 + n), max_tokens=12) for n in range(8)]

    answers = [answer.body for answer in run(serving, *calls)]

    for one, answered in zip(calls, answers, strict=True):
        ids, sampled = tokens(after(one, answered)), tokens(answered.token_ids)
        full = logprobs(model, ids)[-len(sampled) :]
        expected = full.gather(1, torch.tensor(sampled)[:, None])[:, 0]
        found = torch.from_numpy(logprobs_of(answered.logprobs).copy())
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    assert len({answered.token_ids for answered in answers}) > 1


@pytest.mark.vllm
def test_vllm_stops_at_a_stop_string_and_counts_without_sampling(
    serving: VllmEngine,
) -> None:
    whole = body(serving, call("r0", max_tokens=30))
    word = whole.text.split()[4]

    stopped = body(serving, call("r0", max_tokens=30, stop=(word,)))
    counted = body(serving, call("r0", max_tokens=0))

    assert (stopped.finish_reason, stopped.stopped_by) == ("stop", word)
    assert whole.text.startswith(stopped.text)
    assert whole.token_ids.startswith(stopped.token_ids)
    assert (counted.token_ids, counted.finish_reason) == (b"", "length")


@pytest.mark.vllm
def test_aborting_running_vllm_calls_frees_capacity(serving: VllmEngine) -> None:
    for number in range(4):
        serving.add(call(f"r{number}", max_tokens=80))
    serving.step()
    for number in range(4):
        serving.abort(f"r{number}", 1)

    assert not serving.busy()
    [answer] = run(serving, call("r9", max_tokens=3))
    assert answer.call.rollout_id == "r9"


@pytest.mark.vllm
def test_more_prompts_than_one_vllm_step_are_all_answered(
    serving: VllmEngine,
) -> None:
    """Where vLLM cut the last of them in two, its processes died: seeds have no offset on a CPU."""
    calls = [call(f"r{n}", said="s1 " * 60, max_tokens=2) for n in range(100)]

    answers = [answer.body for answer in run(serving, *calls)]

    assert [len(tokens(answered.token_ids)) for answered in answers] == [2] * 100


@pytest.mark.vllm
def test_twins_share_one_vllm_and_answer_with_their_own_weights(
    serving: VllmEngine, lake: Path
) -> None:
    replica = serving.replica()
    take(replica, version_of(lake, 1))
    asked = {
        engine: [call(f"r{n}", max_tokens=80) for n in range(4)] for engine in (serving, replica)
    }
    said: dict[VllmEngine, list[ModelAnswered]] = {serving: [], replica: []}
    turns = []

    for engine, calls in asked.items():
        for one in calls:
            engine.add(one)
    while serving.busy() or replica.busy():
        for engine, bodies in said.items():
            bodies += [answer.body for answer in engine.step()]
            if engine._shared.guest() is engine and (not turns or turns[-1] is not engine):
                turns.append(engine)
        give_way()

    assert len(CORES.lent) == 1
    assert len(turns) >= 2
    for number, engine in enumerate((serving, replica)):
        model = weighted(lake, number)
        assert len(said[engine]) == 4
        for answered in said[engine]:
            assert set(ids_of(answered.versions).tolist()) == {number}
            ids, sampled = tokens(after(call(), answered)), tokens(answered.token_ids)
            expected = logprobs(model, ids)[-len(sampled) :]
            found = torch.from_numpy(logprobs_of(answered.logprobs).copy())
            torch.testing.assert_close(
                found, expected.gather(1, torch.tensor(sampled)[:, None])[:, 0], atol=1e-4, rtol=0
            )


@pytest.mark.vllm
@pytest.mark.parametrize("when", ["as vLLM begins", "when it serves"])
def test_vllm_processes_end_if_their_owner_is_killed(lake: Path, tmp_path: Path, when: str) -> None:
    if find_spec("vllm") is None:
        left_out("vllm", "its processes; `make vllm` installs it")
    ready = tmp_path / "ready"
    with (tmp_path / "log").open("wb") as log:
        owner = subprocess.Popen(
            [sys.executable, "-c", OWNER_OF_VLLM, str(lake), str(ready)], stdout=log, stderr=log
        )
    try:
        until(
            lambda: ready.exists() if when == "when it serves" else len(owned_by(owner.pid)) > 1,
            IMPORT_S,
            lambda: (tmp_path / "log").read_text()[-2000:],
        )
    finally:
        owner.kill()
        owner.wait()

    assert owned_by(owner.pid)
    # A core that has just begun hears of it when it has imported vLLM.
    until(lambda: not owned_by(owner.pid), IMPORT_S, lambda: f"{owned_by(owner.pid)} live on")


OWNER_OF_VLLM = """
import sys, time
from pathlib import Path
from rollcall.inference.vllm_core import CoreOptions, VllmCore

if __name__ == "__main__":
    core = VllmCore(CoreOptions(Path(sys.argv[1]), "float32", 96, 4, 1 << 26, 1))
    Path(sys.argv[2]).touch()
    time.sleep(600)
"""


def owned_by(pid: int) -> list[int]:
    """The processes that vLLM has started for this one."""
    mark = f"{OWNER}={pid}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


@pytest.mark.vllm
def test_an_engine_with_a_killed_vllm_reports_it_and_ends(serving: VllmEngine) -> None:
    [core] = [pid for pid in running("VLLM::EngineCore") if parent_of(pid) == os.getpid()]
    serving.add(call("r0", max_tokens=80))
    serving.step()

    os.kill(core, signal.SIGKILL)

    with pytest.raises(EngineDied, match="vLLM's processes are gone; start the worker again"):
        until(lambda: bool(serving.step()), 60, lambda: "it goes on without its processes")
    CORES.lent.clear()


@pytest.mark.parametrize(
    ("installed", "device", "flags", "said"),
    [
        (False, "cpu", "avx2", "needs vLLM, which .* has not; `make vllm` builds"),
        (True, "cuda", "avx2", "serves on a CPU, models.device is 'cuda'"),
        (True, "cpu", "sse2", "needs a processor with avx2"),
    ],
)
def test_missing_vllm_requirements_are_explained_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    installed: bool,
    device: str,
    flags: str,
    said: str,
) -> None:
    (tmp_path / "cpuinfo").write_text(f"flags\t: fpu {flags}\n")
    monkeypatch.setattr(vllm_place, "CPU_INFO", tmp_path / "cpuinfo")
    spec = ModuleSpec("vllm", None) if installed else None
    monkeypatch.setattr(vllm_place, "find_spec", lambda name: spec)

    with pytest.raises(Refused, match=said) as refused:
        require_vllm(device)

    assert "\n" not in str(refused.value)
