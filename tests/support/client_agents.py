"""Agents that are small clients of one API each, for checks of agents; imported by path.

Most use the standard library alone and print nothing: what they asked is seen at the gateway.
"""

import json
import sys
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

Task = dict[str, Any]
ANTHROPIC = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219"}
TOOL = {
    "name": "Bash",
    "description": "Run a command",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
    "cache_control": {"type": "ephemeral"},
}


def asked(
    url: str, method: str, path: str, headers: dict[str, str], body: Any = None
) -> HTTPResponse:
    """Send one request below a URL, on a connection of its own."""
    where = urlsplit(url)
    connection = HTTPConnection(where.netloc, timeout=60)
    data = None if body is None else json.dumps(body)
    head = {"Content-Type": "application/json", **headers}
    connection.request(method, where.path + path, data, head)
    return connection.getresponse()


def told(answer: HTTPResponse) -> bytes:
    """Return the answer's body; end without a word if the request was declined."""
    if answer.status != 200:
        sys.exit(1)
    return answer.read()


def events(body: bytes) -> list[Any]:
    """Return the data of server-sent events."""
    lines = body.decode().split("\n")
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(text) for text in data if text != "[DONE]"]


def claude_like(task: Task, url: str, key: str) -> str:
    """Ask as Claude Code does: a probe, a count of tokens, a stream."""
    by_key = task["config"]["credential"] == "x-api-key"
    credential = {"x-api-key": key} if by_key else {"Authorization": f"Bearer {key}"}
    headers = {**credential, **ANTHROPIC, "user-agent": "claude-cli/2.0.0 (external, cli)"}
    text = {"type": "text", "text": task["prompt"], "cache_control": {"type": "ephemeral"}}
    prompt = {"messages": [{"role": "user", "content": [text]}], "tools": [TOOL]}
    prompt |= {"model": "claude-sonnet", "system": [{"type": "text", "text": "You are an agent."}]}
    told(asked(url, "HEAD", "", {}))
    told(asked(url, "HEAD", "/api/hello", {}))
    counted = asked(url, "POST", "/v1/messages/count_tokens?beta=true", headers, prompt)
    if json.loads(told(counted))["input_tokens"] < 1:
        sys.exit(2)
    more = {"max_tokens": 32000, "stream": True, "metadata": {"user_id": "u"}}
    more |= {"thinking": {"type": "enabled", "budget_tokens": 1024}, "temperature": 1}
    answer = asked(url, "POST", "/v1/messages?beta=true", headers, {**prompt, **more})
    deltas = [event["delta"] for event in events(told(answer)) if "delta" in event]
    return "".join(delta.get("text", "") for delta in deltas)


def anthropic_client(task: Task, url: str, key: str) -> str:
    """Ask by Anthropic's own library, as a stream, after a count of tokens."""
    import anthropic

    client = anthropic.Anthropic(base_url=url, api_key=key)
    messages: Any = [{"role": "user", "content": task["prompt"]}]
    client.messages.count_tokens(model="policy", messages=messages)
    with client.messages.stream(model="policy", messages=messages, max_tokens=100) as stream:
        return stream.get_final_text()


def openai_client(task: Task, url: str, key: str) -> str:
    """Ask by OpenAI's own library, with log-probabilities."""
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key=key)
    messages: Any = [{"role": "user", "content": task["prompt"]}]
    made = client.chat.completions.create(
        model="policy", messages=messages, logprobs=True, top_logprobs=0, n=2
    )
    assert all(choice.logprobs for choice in made.choices)
    return str(made.choices[1].message.content)


def chat(task: Task, url: str, key: str) -> str:
    messages = [{"role": "user", "content": task["prompt"]}]
    body = {"model": "policy", "messages": messages, "stream": task["config"]["stream"]}
    answer = told(asked(url, "POST", "/v1/chat/completions", bearer(key), body))
    if body["stream"]:
        deltas = [event["choices"][0]["delta"] for event in events(answer) if event["choices"]]
        return "".join(delta.get("content") or "" for delta in deltas)
    return str(json.loads(answer)["choices"][0]["message"]["content"])


def responses(task: Task, url: str, key: str) -> str:
    """Ask twice; the second request continues from the first one's response."""
    body = {"model": "policy", "input": task["prompt"]}
    first = json.loads(told(asked(url, "POST", "/v1/responses", bearer(key), body)))
    body |= {"input": "Go on.", "previous_response_id": first["id"]}
    second = json.loads(told(asked(url, "POST", "/v1/responses", bearer(key), body)))
    return str(second["output"][0]["content"][0]["text"])


def steps(task: Task, url: str, key: str) -> str:
    """Step the environment with the credential of Anthropic's clients."""
    answer = asked(url, "POST", "/v1/step", {"x-api-key": key}, {"action": "look"})
    return str(json.loads(told(answer))["text"])


def wrong(task: Task, url: str, key: str) -> str:
    """Make the requests of the config, and end without a word at the first that is declined."""
    for method, path, credential, body in task["config"]["requests"]:
        below = path.removeprefix("//")
        root = url.partition("/r/")[0] + "/" if below != path else url
        headers = bearer(key if credential == "right" else credential)
        told(asked(root, method, below, headers, body))
    return "not reached"


def tells_task(task: Task, url: str, key: str) -> str:
    return json.dumps(sorted(task))


def ends(task: Task, url: str, key: str) -> None:
    """End without a request."""
    sys.exit(task["config"]["code"])


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}
