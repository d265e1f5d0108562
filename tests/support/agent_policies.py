"""Policies without weights for agents of others: text in, text out, one function for each agent.

Each looks once, does a few chores that leave a trace in the box, counts, and hands in: so what the
box holds at the end tells whether a command was run twice in one life of it, or not at all.
"""

import json
from collections.abc import Callable, Mapping

Speak = Callable[[str], str]

LOOK = "grep -c red notes.txt"
WORD = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
SUBMIT = f"echo 2 > answer; echo {WORD}; echo 2"
CHORES = 6
PROMPT = "How often does red stand in notes.txt?"
SHELL = {"box": "local", "files": {"notes.txt": "red\ngreen\nred\n"}}
ONCE = "".join(f"chore {number}\n" for number in range(CHORES))
CHECK = f'test "$(cat answer)" = 2 && test "$(cat chores)" = "$(printf {json.dumps(ONCE)})"'
SAID, CLOSE = "<|im_start|>assistant\n", "<|im_end|>"
SEEN_BY_CODE = "Observation:\nExecution logs:"


def commands(chores: int) -> list[str]:
    """In their order; the last one hands in."""
    done = [f"echo chore {number} >> chores; cat chores" for number in range(chores)]
    return [LOOK, *done, SUBMIT]


def by_tool(tool: str, argument: str, chores: int = 0) -> Speak:
    """A policy that does everything by calls of one tool, and then is done."""
    script = commands(chores)

    def speak(conversation: str) -> str:
        said = conversation.count(SAID) - 1
        if said >= len(script):
            return "done"
        call = {"name": tool, "arguments": {argument: script[said]}}
        return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"

    return speak


def by_code(chores: int = 0) -> Speak:
    """A policy that writes Python, which calls the function `act`."""
    script = commands(chores)

    def speak(conversation: str) -> str:
        command = script[min(conversation.count(SEEN_BY_CODE), len(script) - 1)]
        if command != script[-1]:
            return f"I look.\n<code>\nprint(act({command!r}))\n</code>"
        return f"I write it down.\n<code>\nact({command!r})\nfinal_answer('done')\n</code>"

    return speak


def policies(chores: int = 0) -> Mapping[str, Speak]:
    """By the agent that each is for."""
    return {
        "mini-swe-agent": by_tool("bash", "command", chores),
        "openai-agents": by_tool("act", "action", chores),
        "smolagents": by_code(chores),
    }


CHORE_POLICIES = policies(CHORES)


def speak(conversation: str) -> str:
    """For `worker models --script`: knows by its tools which agent it speaks to."""
    for agent, tool in (("mini-swe-agent", "bash"), ("openai-agents", "act")):
        if f'"name": "{tool}"' in conversation.partition(CLOSE)[0]:
            return CHORE_POLICIES[agent](conversation)
    return CHORE_POLICIES["smolagents"](conversation)
