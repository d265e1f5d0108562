"""A task family that tests share; the same as in the recipe that ships."""

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
