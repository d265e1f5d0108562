"""Policies that need no intelligence, to see whether everything around them tells the truth.

`oracle` applies the gold patch and hands in, `null` looks around for ever, `noisy` does as `oracle`
with a given probability, drawn by the seed of its first call, and else hands in something that
helps nobody. All are functions of the conversation: what they said before stands in it.
"""

import base64
import gzip
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence

from sandbox.tasks.harbor import GOLD, HarborTask
from schemas import names
from schemas.errors import Refused

ORACLE, NULL, NOISY = "oracle", "null", "noisy"
POLICIES = (ORACLE, NULL, NOISY)
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
LOOK = "ls"
IN_VAIN = "echo 'nothing was found' > NOTES.txt"
ANSWER = "<|im_start|>assistant\n"
BARE = "Each message is run as a command by /bin/sh"
"""What environment `shell` tells whoever speaks to it without an agent in between."""
TOOL = re.compile(r'"name": "(\w+)"[^\n]*?"(command|action)"')
CODE = "<code>"
ACT = "def act("
"""How one that speaks in code is told of the tool that steps its environment."""
INSIDE = """\
import subprocess
ran = subprocess.run({!r}, shell=True, capture_output=True, text=True)
print(ran.stdout, ran.stderr)
if 'COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT' in ran.stdout:
    final_answer('done')"""
"""For one that has none, and whose code runs where its task is."""
DONE = "It is handed in."
BLOCK = re.compile(r"```(mswea_bash_command|bash|sh)\n")

ScriptedPolicy = Callable[..., str]
"""Called with the conversation and the call's `seed`."""


def scripted_policy(
    name: str, tasks: Sequence[HarborTask], gold_share: float | None = None
) -> ScriptedPolicy:
    """The policy of that name over these tasks. Raises Refused."""
    if name not in POLICIES:
        raise names.unknown("scripted policy", name, POLICIES)
    if (gold_share is not None) != (name == NOISY):
        msg = f"the share of gold is for {NOISY!r}, which needs one; the policy is {name!r}"
        raise Refused(msg)
    if name == NULL:
        return null
    share = 1.0 if gold_share is None else gold_share
    return gold_at_times(_commands(tasks), share)


def null(conversation: str, *, seed: int) -> str:
    """Looks around, and never hands in."""
    del seed
    return said_to(conversation, LOOK)


def gold_at_times(commands: Mapping[str, str], share: float) -> ScriptedPolicy:
    """Applies the gold patch of the task with that instruction; `share` 1 is always."""

    def speak(conversation: str, *, seed: int) -> str:
        turns = conversation.count(ANSWER)
        if turns > 2 and "<tools>" in conversation.partition(ANSWER)[0]:
            return DONE
        if turns > 1:
            return said_to(conversation, SUBMIT)
        gold = random.Random(seed).random() < share
        command = _told(commands, conversation)
        return said_to(conversation, command if gold else IN_VAIN)

    return speak


def said_to(conversation: str, command: str) -> str:
    """A command as whoever listens expects it: bare, as a call of a tool, in a block, as code."""
    begin = conversation.partition(ANSWER)[0]
    if BARE in begin:
        return command
    if "<tools>" in begin and (tool := TOOL.search(begin)):
        call = json.dumps({"name": tool[1], "arguments": {tool[2]: command}})
        return f"<tool_call>\n{call}\n</tool_call>"
    if CODE in begin and ACT not in begin:
        return f"I run this.\n{CODE}\n{INSIDE.format(command)}\n</code>"
    if CODE in begin:
        end = "\nfinal_answer('done')" if command == SUBMIT else ""
        return f"I run this.\n{CODE}\nprint(act({command!r})){end}\n</code>"
    if block := BLOCK.search(begin):
        return f"I run this.\n\n```{block[1]}\n{command}\n```"
    return command


def apply_command(patch: bytes) -> str:
    """A command of the shell that applies a patch, whatever bytes it holds."""
    packed = base64.b64encode(gzip.compress(patch, mtime=0)).decode()
    return f"echo {packed} | base64 -d | gunzip | git apply --whitespace=nowarn -"


def _commands(tasks: Sequence[HarborTask]) -> dict[str, str]:
    """What applies the gold patch, by instruction. Raises Refused."""
    commands: dict[str, str] = {}
    for task in tasks:
        instruction = task.instruction.strip()
        if task.gold is None:
            msg = f"task {str(task.directory)!r} has no {GOLD}, which this policy would apply"
            raise Refused(msg)
        if instruction in commands:
            msg = f"task {task.name!r} is told in the same words as another one"
            raise Refused(msg)
        commands[instruction] = apply_command(task.gold)
    return commands


def _told(commands: Mapping[str, str], conversation: str) -> str:
    """The command for the task that a conversation tells; of several the one told in most words."""
    told = [instruction for instruction in commands if instruction in conversation]
    if not told:
        msg = f"none of the {len(commands)} tasks is told in this conversation"
        raise ValueError(msg)
    return commands[max(told, key=len)]
