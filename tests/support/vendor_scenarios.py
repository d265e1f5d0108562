"""What vendors' clients do, in `vendor_clients.py`, and what is to come of it.

Once it is somebody behind the gateway who answers, once a whole system with a policy that is a
function of the conversation: both do what the last message says.
"""

import json
import re
from typing import Any

CALLED = ["bash", {"command": "ls -l"}]

OPENAI: dict[str, Any] = {
    "models": ["policy"],
    "chat_json": ["hello there", "stop", True, True],
    "chat_parts": "in parts",
    "chat_stream": ["hello there", "stop", True],
    "chat_votes": [[0, "yes"], [1, "yes"], [2, "yes"]],
    "chat_cut": "length",
    "chat_logprobs": [True, True],
    "chat_tools_json": [CALLED, "tool_calls", "done"],
    "chat_tools_stream": [CALLED, "tool_calls"],
    "responses_json": ["hello there", "completed", True],
    "responses_stream": ["hello there", "response.completed", "hello there"],
    "responses_reader": "hello there",
    "responses_tools_json": [CALLED, "done"],
    "responses_tools_stream": CALLED,
    "responses_continued": ["second", True],
    "responses_reasoning": ["low", "done"],
    "late_stream": "x",
}
ANTHROPIC: dict[str, Any] = {
    "models": ["policy"],
    "messages_json": ["hello there", "end_turn", True],
    "messages_stream": ["hello there", "end_turn", "hello there"],
    "messages_cut": "max_tokens",
    "messages_tools_json": [CALLED, "tool_use", "done"],
    "messages_tools_stream": [CALLED, "tool_use"],
    "count_tokens": True,
    "late_stream": "x",
}
LITELLM: dict[str, Any] = {
    "chat_json": ["hello there", "stop"],
    "chat_stream": "hello there",
    "chat_tools_json": [CALLED, "done"],
}
WHOLE: dict[str, dict[str, Any]] = {
    kind: {**values, "malformed": "BadRequestError", "wrong_key": "AuthenticationError"}
    | {"models": ["p"]}
    for kind, values in {"openai": OPENAI, "anthropic": ANTHROPIC}.items()
}
"""What an agent makes of it in a rollout: values, and the names of errors."""
TURN = "<|im_start|>"


def speak(conversation: str) -> str:
    """The policy: `say X` is answered with X, `call NAME JSON` with a call."""
    last = conversation.split(TURN)[-2].partition("\n")[2].removesuffix("<|im_end|>\n")
    last = re.sub(r"</?tool_response>", "", last).strip()
    verb, _, words = last.removeprefix("slow ").partition(" ")
    if verb != "call":
        return words
    name, _, arguments = words.partition(" ")
    call = json.dumps({"name": name, "arguments": json.loads(arguments)})
    return f"<tool_call>\n{call}\n</tool_call>"
