"""openai-agents: uses Responses or chat completions; one tool steps the environment."""

import asyncio
import json
import os
import urllib.error
import urllib.request
from typing import Any

TEXT = {"type": "output_text", "text": "done", "annotations": []}
ITEM = {"id": "i", "type": "message", "role": "assistant", "status": "completed", "content": [TEXT]}
DETAILS = {
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}
USAGE = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, **DETAILS}
HEAD = {"id": "r", "object": "response", "created_at": 0, "status": "completed", "model": "m"}
TOOLS = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
REHEARSAL = {"/v1/responses": {**HEAD, **TOOLS, "output": [ITEM], "usage": USAGE}}


def prepare() -> None:
    os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"  # else it is sent to the vendor
    import agents  # noqa: F401


def run(task: dict[str, Any], url: str, key: str) -> str:
    import agents

    try:
        return asyncio.run(played(task, url, key))
    except agents.MaxTurnsExceeded:
        return ""


async def played(task: dict[str, Any], url: str, key: str) -> str:
    import agents
    from openai import AsyncOpenAI

    @agents.function_tool
    def act(action: str) -> str:
        """Apply one action to the environment, and see what it shows."""
        body = json.dumps({"action": action}).encode()
        request = urllib.request.Request(f"{url}/v1/step", body, {"Authorization": f"Bearer {key}"})
        try:
            return str(json.load(urllib.request.urlopen(request))["text"])
        except urllib.error.HTTPError as error:
            return error.read().decode()

    api = task["config"].get("api", "responses")
    kind = agents.OpenAIResponsesModel if api == "responses" else agents.OpenAIChatCompletionsModel
    name = task["config"].get("model", "policy")
    model = kind(name, AsyncOpenAI(base_url=f"{url}/v1", api_key=key))
    agent = agents.Agent("agent", instructions=task["system"] or None, model=model, tools=[act])
    turns = task["limits"].get("max_turns", 100)
    if api != "chat_stream":
        return str((await agents.Runner.run(agent, task["prompt"], max_turns=turns)).final_output)
    result = agents.Runner.run_streamed(agent, task["prompt"], max_turns=turns)
    [None async for _ in result.stream_events()]
    return str(result.final_output)
