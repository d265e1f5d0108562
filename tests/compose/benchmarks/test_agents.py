"""Benchmarks of third-party agents: the parts that work without any installed agent."""

import asyncio
from pathlib import Path

import pytest

from rollcall.compose.benchmarks import agent_memory, suite
from rollcall.compose.benchmarks.agent_takeover import SUBMIT, TURN, Gated, speak
from rollcall.compose.services.service_errors import ServicesError
from rollcall.compose.settings import Settings
from rollcall.sandbox.agents.agent_processes import AgentProcesses
from rollcall.schemas.errors import WorkFailed
from tests.support.model_calls import call_of


@pytest.mark.parametrize("name", ["hosted_agent_bytes", "hosted_resume_s"])
def test_benchmark_of_a_missing_agent_is_refused_with_the_install_command(
    tmp_path: Path, name: str
) -> None:
    settings = Settings(state_dir=tmp_path, cache_dir=tmp_path)

    with pytest.raises(WorkFailed, match="run `rollcall agents install mini-swe-agent`"):
        suite.run_benchmarks([name], settings, None)


def test_answers_after_the_tenth_turn_wait_for_the_gate(tmp_path: Path) -> None:
    gate = tmp_path / "go-on"
    engine = Gated(gate)

    for number in range(TURN + 1):
        engine.add(call_of("r", number))

    assert [len(engine.step()), engine.busy(), len(engine.step())] == [TURN, False, 0]
    gate.touch()
    assert [engine.busy(), len(engine.step()), engine.busy()] == [True, 1, False]
    said = "<|im_start|>assistant\n"
    assert [SUBMIT in speak(said * turn) for turn in (TURN, TURN + 1)] == [False, True]


def test_memory_of_waiting_agents_is_measured(tmp_path: Path) -> None:
    empty = tmp_path / "empty.py"
    empty.write_text(agent_memory.EMPTY)
    asks = tmp_path / "asks.py"
    asks.write_text(
        "import urllib.request\n"
        "def run(task, url, key):\n"
        "    held = bytearray(b'x' * 20_000_000)\n"
        "    urllib.request.urlopen(url + '/v1/responses', b'{}')\n"
    )

    async def sizes(file: Path, task: dict[str, object] | None) -> list[int]:
        processes = AgentProcesses(tmp_path / "home", tmp_path / "scratch")
        config = {"agent": "python", "function": f"{file}:run"}
        try:
            return await agent_memory.sizes(processes, config, task, 3)
        finally:
            await processes.close()

    bare, held = asyncio.run(sizes(empty, None)), asyncio.run(sizes(asks, {"seed": 0}))

    assert len(bare) == len(held) == 3
    assert 20_000_000 < min(held) - max(bare) < 30_000_000
    with pytest.raises(ServicesError, match="0 of 3 agents wait"):
        asyncio.run(sizes(empty, {"seed": 0}))
