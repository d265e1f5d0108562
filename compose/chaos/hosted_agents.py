"""The workload's hosted agents, imported by an agent's own Python: only the standard library.

Each message has its speaker and turn, so no process asks the same twice: a repeated ask comes from
a restarted process. A refused ask ends the conversation.
"""

import http.client
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

CALLERS = 2
TALK = 3


class AskRefused(Exception):
    """The endpoint answered with another status than 200."""


def sequential(task: dict[str, Any], url: str, key: str) -> str:
    """Ask and act in turns, until the task's environment has ended."""
    shown, messages = str(task["observation"]), []
    try:
        for turn in range(int(task["config"]["turns"])):
            messages.append({"role": "user", "content": f"turn {turn}: {shown}"})
            said = model(url, key, messages)
            messages.append({"role": "assistant", "content": said})
            step = ask(url, key, "/v1/step", {"action": said})
            shown = str(step["text"])
            if step["terminated"]:
                break
    except AskRefused as refused:
        return f"{shown}; then {refused}"
    return shown


def side_by_side(task: dict[str, Any], url: str, key: str) -> str:
    """Run several independent callers."""
    del task
    with ThreadPoolExecutor(CALLERS) as pool:
        talks = [pool.submit(talk, url, key, f"caller {n}") for n in range(CALLERS)]
        return " | ".join(each.result() for each in talks)


def noisy(task: dict[str, Any], url: str, key: str) -> str:
    """Ask something random, so that a restarted process asks something else."""
    del task
    return talk(url, key, f"life {os.urandom(8).hex()}")


def talk(url: str, key: str, speaker: str) -> str:
    """Have a conversation of a few turns; return its last answer."""
    said, messages = "", []
    try:
        for turn in range(TALK):
            messages.append({"role": "user", "content": f"{speaker}, turn {turn}: {said}"})
            said = model(url, key, messages)
            messages.append({"role": "assistant", "content": said})
    except AskRefused as refused:
        return f"{said}; then {refused}"
    return said


def model(url: str, key: str, messages: list[dict[str, str]]) -> str:
    """Return the policy's answer to a conversation; raises AskRefused."""
    found = ask(url, key, "/v1/chat/completions", {"model": "policy", "messages": messages})
    return str(found["choices"][0]["message"]["content"])


def ask(url: str, key: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Send one request; raises AskRefused."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.netloc)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection.request("POST", where.path + path, json.dumps(body), headers)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    if answer.status != http.HTTPStatus.OK:
        raise AskRefused(str(answer.status))
    found: dict[str, Any] = json.loads(text)
    return found


def main() -> None:
    """hosted_agents.py FUNCTION, as a plain command that finds its task beside it."""
    function = {each.__name__: each for each in (sequential, side_by_side, noisy)}[sys.argv[1]]
    task = json.loads(Path("task.json").read_text())
    url, key = os.environ["ROLLCALL_URL"], os.environ["ROLLCALL_KEY"]
    ask(url, key, "/v1/finish", {"result": function(task, url, key)})


if __name__ == "__main__":
    main()
