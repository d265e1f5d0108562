"""Task families that a small policy learns from random weights on one CPU core."""

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """What the tasks of a family share; the seed makes the difference."""

    environment: str
    config_json: str


LAKE_ANY_START = Family(
    "gymnasium",
    json.dumps(
        {
            "id": "FrozenLake-v1",
            "kwargs": {
                "desc": ["SSSS", "SHSH", "SSSH", "HSSG"],
                "is_slippery": False,
                "max_episode_steps": 8,
            },
            "observation": "s{observation}",
            "actions": ["L", "D", "R", "U"],
            "max_turns": 8,
        }
    ),
)
"""A frozen lake with 11 starting cells: at most 8 turns, reward 1 at the goal."""

SYLLOGISMS = Family(
    "reasoning_gym",
    json.dumps(
        {
            "dataset": "syllogism",
            "config": {"invalid_ratio": 0.5, "inversion_probability": 0.0},
        }
    ),
)
"""Two premises and a conclusion over words: "Yes" or "No", half of each; one turn of one word."""
