"""An agent that crosses the lake, as a user would write it: a vendor's client and a base URL."""

import json
import urllib.request
from typing import Any

import openai

CLIENT = openai.OpenAI(base_url="http://127.0.0.1", api_key="none")
"""Made once, before there is a rollout: a client's modules and certificates are half its cost."""
assert CLIENT.chat.completions


def play(task: dict[str, Any], url: str, key: str) -> None:
    client = CLIENT.with_options(base_url=f"{url}/v1", api_key=key)
    messages: list[Any] = [{"role": "user", "content": task["observation"]}]
    for _ in range(task["limits"]["max_turns"]):
        answer = client.chat.completions.create(model="policy", messages=messages)
        action = answer.choices[0].message.content or ""
        messages.append({"role": "assistant", "content": action})
        seen = act(url, key, action)
        if seen["terminated"] or seen["truncated"]:
            break
        messages.append({"role": "user", "content": seen["text"]})


def act(url: str, key: str, action: str) -> dict[str, Any]:
    """Apply an action to the environment of the task."""
    body = json.dumps({"action": action}).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/step", body, headers)
    with urllib.request.urlopen(request, timeout=600) as answer:
        return dict(json.load(answer))
