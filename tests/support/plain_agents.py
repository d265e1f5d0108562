"""An agent for many turns, of the standard library alone; it runs in a process of its own."""

import json
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit


def works(task: dict[str, Any], url: str, key: str) -> str:
    """Asks, acts and tells what it saw, `turns` times, by one of the dialects."""
    where, config = urlsplit(url), task["config"]
    connection = HTTPConnection(where.netloc)

    def post(path: str, body: dict[str, Any]) -> Any:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        connection.request("POST", where.path + path, json.dumps(body), headers)
        answer = connection.getresponse()
        read = answer.read()
        assert answer.status == 200, read
        return json.loads(read)

    messages = [{"role": "user", "content": task["prompt"]}]
    for _ in range(config["turns"]):
        if config["api"] == "chat":
            body = post("/v1/chat/completions", {"model": "p", "messages": messages})
            said = body["choices"][0]["message"]["content"]
        else:
            body = post("/v1/responses", {"model": "p", "input": messages})
            said = body["output"][0]["content"][0]["text"]
        seen = post("/v1/step", {"action": said})["text"]
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": seen}]
    return "done"
