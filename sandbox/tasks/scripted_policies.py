"""Scripted policies without a model, to check that environments and rewards are right.

`oracle` applies the gold patch and submits, `null` lists files for ever, `noisy` acts as `oracle`
with a given probability, drawn by the seed of its first call, and else submits a useless change.
All are functions of the conversation, which contains their earlier answers.
"""

import base64
import gzip
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence

from rollcall.sandbox.tasks.harbor import GOLD, HarborTask
from rollcall.schemas import names
from rollcall.schemas.errors import Refused

ORACLE, NULL, NOISY = "oracle", "null", "noisy"
POLICIES = (ORACLE, NULL, NOISY)
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
LOOK = "ls"
IN_VAIN = "echo 'nothing was found' > NOTES.txt"
ANSWER = "<|im_start|>assistant\n"
BARE = "Each message is run as a command by /bin/sh"
"""A part of the first observation of environment `shell`, seen by programs such as `react`."""
TOOL = re.compile(r'"name": "(\w+)"[^\n]*?"(command|action)"')
CODE = "<code>"
ACT = "def act("
"""The declaration of the step tool in the prompt of an agent that writes code."""
INSIDE = """\
import subprocess
ran = subprocess.run({!r}, shell=True, capture_output=True, text=True)
print(ran.stdout, ran.stderr)
if 'COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT' in ran.stdout:
    final_answer('done')"""
"""Code for an agent without that tool, whose code runs in the box of its task."""
DONE = "It is handed in."
BLOCK = re.compile(r"```(mswea_bash_command|bash|sh)\n")

ScriptedPolicy = Callable[..., str]
"""A function of the conversation and the call's `seed`."""


def scripted_policy(
    name: str, tasks: Sequence[HarborTask], gold_share: float | None = None
) -> ScriptedPolicy:
    """Return the policy of that name for these tasks. Raises Refused."""
    if name not in POLICIES:
        raise names.unknown_name("scripted policy", name, POLICIES)
    if (gold_share is not None) != (name == NOISY):
        msg = f"the share of gold is for {NOISY!r}, which needs one; the policy is {name!r}"
        raise Refused(msg)
    if name == NULL:
        return null
    share = 1.0 if gold_share is None else gold_share
    return gold_at_times(_commands(tasks), share)


def null(conversation: str, *, seed: int) -> str:
    """List files, and never submit."""
    del seed
    return said_to(conversation, LOOK)


def gold_at_times(commands: Mapping[str, str], share: float) -> ScriptedPolicy:
    """Return a policy that applies a task's gold patch with probability `share`."""

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
    """Format a command as the agent expects it: bare, as a tool call, in a block, or as code."""
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
    """Return a shell command that applies a patch with any bytes."""
    packed = base64.b64encode(gzip.compress(patch, mtime=0)).decode()
    return f"echo {packed} | base64 -d | gunzip | git apply --whitespace=nowarn -"


def _commands(tasks: Sequence[HarborTask]) -> dict[str, str]:
    """Return the commands that apply gold patches, by instruction. Raises Refused."""
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
    """Return the command for the task with the longest instruction in the conversation."""
    told = [instruction for instruction in commands if instruction in conversation]
    if not told:
        msg = f"none of the {len(commands)} tasks is told in this conversation"
        raise ValueError(msg)
    return commands[max(told, key=len)]
