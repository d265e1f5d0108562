"""smolagents: its code agent uses chat completions, and its code may step the environment.

In the box of its task it has no tool but its code, which may then import any module.
"""

import json
import urllib.error
import urllib.request
from typing import Any

CODE = "It is done.\n<code>\nfinal_answer('done')\n</code>"
CHOICE = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": CODE}}
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
CHAT = {"id": "r", "object": "chat.completion", "created": 0, "model": "m", "choices": [CHOICE]}
REHEARSAL = {"/v1/chat/completions": {**CHAT, "usage": USAGE}}


def prepare() -> None:
    import smolagents  # noqa: F401


def run(task: dict[str, Any], url: str, key: str) -> str:
    import smolagents

    class Act(smolagents.Tool):
        name = "act"
        description = "Applies one action to the environment, and returns what it shows."
        inputs = {"action": {"type": "string", "description": "the action"}}
        output_type = "string"

        def forward(self, action: str) -> str:
            body = json.dumps({"action": action}).encode()
            head = {"Authorization": f"Bearer {key}"}
            request = urllib.request.Request(f"{url}/v1/step", body, head)
            try:
                return str(json.load(urllib.request.urlopen(request))["text"])
            except urllib.error.HTTPError as error:
                return error.read().decode()

    inside = task["config"].get("box") == "task"
    name = task["config"].get("model", "policy")
    model = smolagents.OpenAIModel(name, api_base=f"{url}/v1", api_key=key)
    agent = smolagents.CodeAgent(
        tools=[] if inside else [Act()],
        additional_authorized_imports=["*"] if inside else [],
        model=model,
        instructions=task["system"] or None,
        max_steps=task["limits"].get("max_turns", 100),
        verbosity_level=smolagents.LogLevel.ERROR,
    )
    return str(agent.run(task["prompt"]))
