"""Agents of somebody who knows nothing but an endpoint; run in a process of their own."""

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from openai import OpenAI

POOL = 4


def client(url: str, key: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key=key)


def talk(openai: OpenAI, opening: str, turns: int) -> list[Any]:
    messages: list[Any] = [{"role": "user", "content": opening}]
    for turn in range(turns):
        answer = openai.chat.completions.create(model="p", messages=messages)
        said = answer.choices[0].message.content
        messages += [
            {"role": "assistant", "content": said},
            {"role": "user", "content": f"turn {turn}"},
        ]
    return messages


def sequential(task: dict[str, Any], url: str, key: str) -> str:
    """Calls the model, and acts in its task's environment in between."""
    openai, said = client(url, key), []
    messages: list[Any] = [{"role": "user", "content": task["observation"] or task["prompt"]}]
    for _ in range(3):
        answer = openai.chat.completions.create(model="p", messages=messages)
        said.append(answer.choices[0].message.content)
        messages.append({"role": "assistant", "content": said[-1]})
        if task["observation"]:
            messages.append({"role": "user", "content": step(url, key, said[-1] or "")["text"]})
        else:
            messages.append({"role": "user", "content": "go on"})
    return json.dumps(said)


def step(url: str, key: str, action: str) -> Any:
    body = json.dumps({"action": action}).encode()
    request = urllib.request.Request(f"{url}/v1/step", body, {"Authorization": f"Bearer {key}"})
    return json.load(urllib.request.urlopen(request))


def parallel(task: dict[str, Any], url: str, key: str) -> str:
    """Four callers of their own, and three equal votes beside them."""
    openai = client(url, key)
    with ThreadPoolExecutor(POOL + 3) as pool:
        talks = [pool.submit(talk, openai, f"caller {n}", 3) for n in range(POOL)]
        votes = [pool.submit(talk, openai, "vote", 1) for _ in range(3)]
        voted = sorted(vote.result()[1]["content"] for vote in votes)
        return json.dumps([[done.result() for done in talks], voted])


def noisy(task: dict[str, Any], url: str, key: str) -> str:
    """Says something else every time."""
    import os

    return json.dumps(talk(client(url, key), f"I am {os.getpid()}", 3))


def fails(task: dict[str, Any], url: str, key: str) -> None:
    print("about to fail")
    raise SystemExit(3)
