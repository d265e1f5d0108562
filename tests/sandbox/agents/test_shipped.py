"""Agents by name: known names, required config, and agreement with the documentation page."""

import json
import re
from pathlib import Path

import pytest

from rollcall.compose.agents.agent_check import RESULT, check
from rollcall.sandbox.agents.shipped import ADAPTERS, SHIPPED, check_agent
from rollcall.schemas.errors import Refused
from tests.support.pages import PAGES, blocks

PAGE = "sandbox/agents/README.md"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "agent_config.agent is None; it names the agent to host: known are"),
        ({"agent": 3}, "agent_config.agent is 3"),
        ({"agent": "smol-agents"}, "unknown agent 'smol-agents'; did you mean 'smolagents'?"),
        ({"agent": "python"}, "needs agent_config.function, 'FILE.py:FUNCTION'; found None"),
        ({"agent": "python", "function": "mine:f"}, "'FILE.py:FUNCTION'; found 'mine:f'"),
        ({"agent": "python", "function": "a.py:f", "python": 3}, "agent_config.python is 3"),
        ({"agent": "command", "argv": ["ls", 3]}, "a list of words"),
        ({"agent": "command", "argv": [""]}, "a list of words"),
        ({"agent": "openai-agents", "python": "python3"}, "has its own"),
    ],
)
def test_invalid_agent_config_is_refused_in_one_line(config: dict[str, object], words: str) -> None:
    with pytest.raises(Refused, match=re.escape(words)) as error:
        check_agent(config)

    assert "\n" not in str(error.value)


def test_every_shipped_agent_has_a_short_adapter_and_a_table_row() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|", PAGES[PAGE], re.MULTILINE)

    assert rows == list(SHIPPED)
    adapters = {path.stem: path for path in ADAPTERS.glob("*.py")}
    assert {agent.adapter for agent in SHIPPED.values()} == adapters.keys() - {"__init__"}
    assert [
        path.stem for path in adapters.values() if len(path.read_text().splitlines()) > 60
    ] == []


def test_request_on_the_documentation_page_is_valid() -> None:
    (text,) = blocks("json", PAGE)

    request = json.loads(text)
    assert request["agent"] == "hosted"
    check_agent(request["agent_config"])


def test_function_on_the_documentation_page_completes_a_rollout(tmp_path: Path) -> None:
    (source,) = blocks("python", PAGE)
    file = tmp_path / "my_agent.py"
    file.write_text(source)

    (played,) = check(tmp_path / "none", "python", {"function": f"{file}:play"})

    assert (played.wrong, played.result, played.threads) == ("", RESULT, 1)
    assert played.calls == ["/v1/chat/completions, 1 message"]
    assert len(source.splitlines()) < 20
