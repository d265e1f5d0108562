"""What vLLM as an engine does beyond the contract of all, and where it refuses to begin."""

import os
import signal
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from inference import vllm_place
from inference.vllm_engine import VllmEngine
from inference.vllm_place import require_vllm
from schemas.errors import EngineDied, Refused
from schemas.packed import logprobs_of
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
from tests.support.waiting import until

CORES = Cores()


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
def test_vllm_scores_what_it_samples_as_a_full_forward_pass_does(
    serving: VllmEngine, lake: Path
) -> None:
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
def test_vllm_stops_at_a_stop_string_and_samples_nothing_where_nothing_is_asked(
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
def test_aborting_what_vllm_is_at_work_on_leaves_room_for_others(serving: VllmEngine) -> None:
    for number in range(4):
        serving.add(call(f"r{number}", max_tokens=80))
    serving.step()
    for number in range(4):
        serving.abort(f"r{number}", 1)

    assert not serving.busy()
    [answer] = run(serving, call("r9", max_tokens=3))
    assert answer.call.rollout_id == "r9"


@pytest.mark.vllm
def test_an_engine_whose_vllm_is_killed_says_so_and_leaves(serving: VllmEngine) -> None:
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
def test_where_vllm_cannot_run_one_line_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, installed: bool, device: str, flags: str,
    said: str,
) -> None:  # fmt: skip
    (tmp_path / "cpuinfo").write_text(f"flags\t: fpu {flags}\n")
    monkeypatch.setattr(vllm_place, "CPU_INFO", tmp_path / "cpuinfo")
    spec = ModuleSpec("vllm", None) if installed else None
    monkeypatch.setattr(vllm_place, "find_spec", lambda name: spec)

    with pytest.raises(Refused, match=said) as refused:
        require_vllm(device)

    assert "\n" not in str(refused.value)
