"""Third-party agents, run against a scripted endpoint."""

from collections.abc import Sequence

import pytest

from rollcall.compose.agents.agent_check import RESULT, TRIALS, check
from rollcall.compose.agents.installation import listing
from rollcall.compose.settings import load_settings
from rollcall.sandbox.agents.shipped import SHIPPED

pytestmark = pytest.mark.agents

CALLS = {
    "mini-swe-agent": ["/v1/chat/completions, 2 messages, 1 tool"],
    "openai-agents": [
        "/v1/responses, 1 message, 1 tool",
        "/v1/chat/completions, 1 message, 1 tool",
        "/v1/chat/completions, 1 message, 1 tool, as a stream",
    ],
    "smolagents": [
        "/v1/chat/completions, 2 messages, stop ['Observation:', 'Calling tools:', '</code>']"
    ],
}


@pytest.mark.parametrize(("name", "calls"), CALLS.items())
def test_agent_acts_once_and_returns_its_result(name: str, calls: Sequence[str]) -> None:
    """The agent is forked before it has a thread."""
    played = check(load_settings().installed_agents(), name, {})

    assert [trial.wrong for trial in played] == [""] * len(TRIALS[name])
    assert [trial.calls[0] for trial in played] == calls
    assert [len(trial.calls) for trial in played] == [2] * len(calls)
    assert {(trial.result or "").strip() for trial in played} == {RESULT}
    assert {trial.threads for trial in played} == {1}


def test_every_agent_installable_by_name_is_tested() -> None:
    by_name = {name for name, agent in SHIPPED.items() if agent.requirements}

    assert by_name == CALLS.keys() == TRIALS.keys()
    rows = listing(load_settings().installed_agents())
    assert {row.name: row.state for row in rows if row.name in by_name} == dict.fromkeys(
        by_name, "ready"
    )
