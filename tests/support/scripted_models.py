"""A models worker of its own process whose policy draws a word from the call's seed.

Run by path with the cluster in the environment:
`python tests/support/scripted_models.py NAME POLICY`.
"""

import random
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from compose.cluster import cluster_of
from compose.log_setup import set_up
from compose.settings import load_settings
from compose.workers.build import Workshop
from compose.workers.shutdown import Stop
from inference.scripted import ScriptedEngine
from schemas.messages import ModelCall

WORDS = ["L", "D", "R", "U", "no"]


def word(call: ModelCall) -> str:
    return random.Random(call.seed).choice(WORDS)


def main(name: str, policy_id: str) -> None:
    set_up("models", name)
    cluster = replace(cluster_of(load_settings()), name=name)
    workshop = Workshop(cluster.log, cluster.codec, cluster.topics, cluster.settings)
    loop = workshop.models(name, ScriptedEngine(policy_id, word))
    loop.run(Stop())


if __name__ == "__main__":
    main(*sys.argv[1:])
