"""Policies that always, never or sometimes know the answer."""

import json
from pathlib import Path

import pytest

from rollcall.inference.text_script import text_script
from rollcall.inference.tools import calls_in
from rollcall.sandbox.tasks.harbor import HarborTask, read_task
from rollcall.sandbox.tasks.scripted_policies import BARE, apply_command, scripted_policy
from rollcall.schemas.errors import Refused, WorkFailed
from rollcall.schemas.messages import Message, ModelCall, Sampling
from tests.support.task_directories import GOLD, write_task


@pytest.fixture
def task(tmp_path: Path) -> HarborTask:
    return read_task(write_task(tmp_path / "sums"))


def ask(text: str, *, seed: int = 0, tools: str = "") -> ModelCall:
    message = (Message("user", text),)
    return ModelCall("r", 0, 1, 0, b"1" * 16, b"", 0, 0, "sample", "p", 0, message, Sampling(),
                     seed, b"", 0, b"", tools)  # fmt: skip


def said(name: str, task: HarborTask, call: ModelCall, share: float | None = None) -> str:
    answer = text_script(scripted_policy(name, [task], share), name)(call)
    assert isinstance(answer, str)
    return answer


def test_oracle_policy_answers_in_the_format_that_the_prompt_expects(task: HarborTask) -> None:
    command = apply_command(GOLD.encode())
    tools = json.dumps([{"type": "function", "function": {"name": "bash", "parameters": {
        "type": "object", "properties": {"command": {"type": "string"}}}}}])  # fmt: skip

    assert said("oracle", task, ask(f"{task.instruction}\n\n{BARE} in ~")) == command
    blocks = said("oracle", task, ask(f"Answer with\n```bash\nls\n```\n{task.instruction}"))
    assert blocks.endswith(f"```bash\n{command}\n```")
    (call,) = json.loads(
        calls_in("hermes", said("oracle", task, ask(task.instruction, tools=tools)), b"1")[1]
    )
    assert call["function"] == {"name": "bash", "arguments": json.dumps({"command": command},
                                separators=(",", ":"))}  # fmt: skip


def test_null_policy_only_lists_files_and_unknown_task_fails(task: HarborTask) -> None:
    assert said("null", task, ask(f"anything\n{BARE}")) == "ls"
    with pytest.raises(WorkFailed, match="none of the 1 tasks is told"):
        said("oracle", task, ask("Mend something else."))


def test_noisy_policy_is_right_with_its_share_and_deterministic_per_seed(task: HarborTask) -> None:
    """400 draws at 0.3 are within 70 to 172, but for one false alarm in 10 million."""
    calls = [ask(f"{task.instruction}\n{BARE}", seed=number << 32) for number in range(400)]

    first = ["git apply" in said("noisy", task, call, 0.3) for call in calls]

    assert 70 <= sum(first) <= 172
    assert [("git apply" in said("noisy", task, call, 0.3)) for call in calls[:20]] == first[:20]
    assert all("git apply" in said("noisy", task, call, 1.0) for call in calls[:20])
    assert not any("git apply" in said("noisy", task, call, 0.0) for call in calls[:20])


def test_invalid_scripted_policy_arguments_are_refused(task: HarborTask, tmp_path: Path) -> None:
    bare = read_task(write_task(tmp_path / "bare", {"solution/gold.patch": None}))

    with pytest.raises(Refused, match="did you mean 'oracle'"):
        scripted_policy("orcale", [])
    with pytest.raises(Refused, match="the share of gold is for 'noisy'"):
        scripted_policy("oracle", [task], 0.5)
    with pytest.raises(Refused, match="which needs one"):
        scripted_policy("noisy", [task])
    with pytest.raises(Refused, match=r"has no solution/gold\.patch"):
        scripted_policy("oracle", [bare])
    with pytest.raises(Refused, match="in the same words"):
        scripted_policy("oracle", [task, task])
