"""`rollcall agents check`: agents run at the gateway with a scripted model behind it."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from rollcall.compose.agents import agent_check
from rollcall.compose.agents.agent_check import RESULT, Played, check
from tests.support.command_line import call
from tests.support.pages import PAGES

SUPPORT = Path(__file__).parents[2] / "support"
CLIENTS = SUPPORT / "client_agents.py"
CHAT = "/v1/chat/completions, 1 message"
CHAT_BODY = {"model": "policy", "messages": [{"role": "user", "content": "hello"}]}


def played_by(tmp_path: Path, function: str, **config: Any) -> Played:
    """The record of the one trial of an agent that is a function."""
    given = {"function": f"{CLIENTS}:{function}", **config}
    (played,) = check(tmp_path / "none", "python", given)
    return played


@pytest.mark.parametrize(
    ("function", "config", "calls"),
    [
        ("chat", {"stream": False}, [CHAT]),
        ("chat", {"stream": True}, [f"{CHAT}, as a stream"]),
        ("openai_client", {}, [CHAT]),
        ("responses", {}, ["/v1/responses, 1 message", "/v1/responses, 3 messages"]),
        *[
            (
                "claude_like",
                {"credential": credential},
                [
                    "/v1/messages/count_tokens, 2 messages, 1 tool",
                    "/v1/messages, 2 messages, 1 tool, as a stream",
                ],
            )
            for credential in ("x-api-key", "bearer")
        ],
        (
            "anthropic_client",
            {},
            ["/v1/messages/count_tokens, 1 message", "/v1/messages, 1 message, as a stream"],
        ),
    ],
)
def test_client_of_each_api_passes_its_check(
    tmp_path: Path, function: str, config: dict[str, Any], calls: list[str]
) -> None:
    played = played_by(tmp_path, function, **config)

    assert played.wrong == "", played.last_words
    assert (played.result, played.calls, played.declined) == (RESULT, calls, [])


def test_agent_steps_its_environment_with_an_x_api_key(tmp_path: Path) -> None:
    played = played_by(tmp_path, "steps")

    assert (played.wrong, played.actions, played.result) == ("", ["look"], "a door")


@pytest.mark.parametrize(
    ("requests", "declined"),
    [
        (
            [["POST", "/v1/v1/messages?beta=true", "right", {}]],
            "POST /v1/v1/messages: 404, there is no such route",
        ),
        ([["HEAD", "/no/such", "right", None]], "HEAD /no/such: 404, there is no such route"),
        (
            [["POST", "//v1/messages", "right", {}]],
            "POST /v1/messages: 404, there is no such route",
        ),
        ([["POST", "", "right", {}]], "POST /: 404, "),
        (
            [["POST", "/v1/chat/completions", "another", CHAT_BODY]],
            "POST /v1/chat/completions: 401, the request's key is not that of its URL",
        ),
        (
            [["POST", "/v1/messages", "right", {"model": "policy", "messages": []}]],
            "POST /v1/messages: 400, ",
        ),
        (
            [
                ["POST", "/v1/chat/completions", "right", CHAT_BODY],
                ["POST", "/v1/responses", "right", {"model": "policy", "input": 3}],
            ],
            "POST /v1/responses: 400, ",
        ),
    ],
)
def test_failed_check_says_what_was_asked_and_why_it_was_declined(
    tmp_path: Path, requests: list[Any], declined: str
) -> None:
    played = played_by(tmp_path, "wrong", requests=requests)

    begin = f"it ended with code 1, without output; the gateway declined {declined}"
    assert played.wrong.startswith(begin), played.wrong
    assert len(played.wrong) > len(begin) - len(declined) + len("POST /: 404, ")
    assert played.declined[-1].startswith(declined)


def test_several_declined_requests_are_counted_in_the_note(tmp_path: Path) -> None:
    config = {"argv": [sys.executable, "-c", SEVERAL]}

    (played,) = check(tmp_path / "none", "command", config)

    assert played.wrong == (
        "it ended with code 4, without output; the gateway declined 3 requests, "
        "the last one GET /v1/files/3: 404, there is no such route"
    )
    assert [line.partition(":")[0] for line in played.declined] == [
        f"GET /v1/files/{number}" for number in (1, 2, 3)
    ]


SEVERAL = """
import os, sys, urllib.error, urllib.request
for number in (1, 2, 3):
    try:
        urllib.request.urlopen(f"{os.environ['ROLLCALL_URL']}/v1/files/{number}")
    except urllib.error.HTTPError:
        pass
sys.exit(4)
"""


def test_client_that_never_asks_is_said_to_have_made_no_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLCALL_CACHE_DIR", str(tmp_path))
    config = {"function": f"{CLIENTS}:ends", "code": 3}

    assert call(None, "agents", "check", "python", "--config", json.dumps(config)) == 1
    seen = capsys.readouterr()
    assert "it ended with code 3, without output; it made no model call" in seen.err
    assert "  made no model call\n" in seen.out
    assert not call(
        None, "agents", "check", "python", "--config", json.dumps({**config, "code": 0})
    )
    assert "  made no model call\n  ended well\n" in capsys.readouterr().out


def test_declined_requests_are_printed_below_the_calls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLCALL_CACHE_DIR", str(tmp_path))
    requests = [
        ["POST", "/v1/chat/completions", "right", CHAT_BODY],
        ["GET", "/v1/files", "right", None],
    ]
    config = json.dumps({"function": f"{CLIENTS}:wrong", "requests": requests})

    assert call(None, "agents", "check", "python", "--config", config) == 1

    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:] == [
        f"  {CHAT}",
        "  declined GET /v1/files: 404, there is no such route",
        "  failed",
    ]


def test_agent_that_does_not_end_is_killed_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_check, "LONGEST_S", 0.2)
    config = {"function": f"{SUPPORT / 'agent_functions.py'}:waits"}

    (played,) = check(tmp_path / "none", "python", config)

    assert played.wrong == "it did not end within 0.2 s; it made no model call"


def test_checked_agent_gets_a_task_with_all_keys_of_a_rollout(tmp_path: Path) -> None:
    words = re.search(r"`task` is the answer of `GET /v1/task`:(.*?)\. `POST", PAGE, re.DOTALL)
    assert words is not None

    played = played_by(tmp_path, "tells_task")

    assert json.loads(played.result or "") == sorted(re.findall(r"`(\w+)`", words[1]))


PAGE = PAGES["sandbox/agents/README.md"]
