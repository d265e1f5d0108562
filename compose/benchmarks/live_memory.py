"""Memory of a live rollout in an agents worker: the fold's state after half of its turns.

A separate process folds many rollouts from encoded events, as a worker does, and leaves them open.
The ceiling is their payload: the bytes of tokens, log-probabilities, versions and texts without
objects around them.
"""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

from rollcall.compose.benchmarks import load
from rollcall.compose.benchmarks.figure import Figure
from rollcall.compose.processes import module
from rollcall.compose.settings import Settings
from rollcall.consumers.agents.fold.rollout import Rollout
from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.topics import Topics

LIVE = 50_000
TOKENS = 64
PAGE = os.sysconf("SC_PAGE_SIZE")


def live_rollout(settings: Settings, *, live: int = LIVE) -> Figure:
    """Measure bytes of resident memory per open rollout."""
    del settings
    ran = subprocess.run(module(__name__, str(live)), stdout=subprocess.PIPE, check=True)
    measured = json.loads(ran.stdout)
    note = f"{live:,} rollouts live, {load.TURNS // 2} of {load.TURNS} turns each"
    return Figure(
        measured["resident"], "bytes", measured["payload"], lower_is_better=True, notes=(note,)
    )


def fold(live: int) -> dict[str, float]:
    """Open `live` rollouts; return resident and payload bytes of one."""
    player = load.Player(Codec(LocalRegistry()), TOKENS, Topics())
    _open(player, "warm")  # schemas are parsed and modules imported by now
    gc.collect()
    before = resident()
    for number in range(live):
        _open(player, f"{number:032x}")
    gc.collect()
    after = resident()
    rollouts = list(player.folded.open.values())[1:]
    payload = sum(payload_bytes(rollout) for rollout in rollouts)
    return {"resident": (after - before) / live, "payload": payload / live}


def _open(player: load.Player, rollout_id: str) -> None:
    """Play a reset and half the turns, and leave the next call unanswered."""
    for number, _ in enumerate(player.play(load.request(rollout_id))):
        if number == load.TURNS + 1:
            return


def payload_bytes(rollout: Rollout) -> int:
    """Return a rollout's payload bytes: its request's texts, and its turns' tokens and texts."""
    request = rollout.request
    texts = [request.rollout_id, request.task.environment, request.task.environment_config]
    size = 0
    for conversation in rollout.attempt.conversations:
        texts += [message.content for message in conversation.messages]
        size += len(conversation.ids)
        for answer in conversation.answers:
            size += len(answer.logprobs) + len(answer.versions())
    texts += [step.info for step in rollout.attempt.steps_taken()]
    return size + sum(len(text.encode()) for text in texts)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


if __name__ == "__main__":
    json.dump(fold(int(sys.argv[1])), sys.stdout)
