"""Frozen lakes that tests cross, and one way over the small one."""

import json
from dataclasses import dataclass

from rollcall.schemas.messages import (
    Limits,
    ModelCall,
    RolloutRequest,
    Task,
)

LAKE = {
    "id": "FrozenLake-v1",
    "kwargs": {"desc": ["SFF", "FHF", "FFG"], "is_slippery": False, "max_episode_steps": 6},
    "observation": "s{observation}",
    "actions": ["L", "D", "R", "U"],
}
"""A lake of three by three: at most 6 turns."""


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


def crossing(number: int, group: str = "") -> RolloutRequest:
    return RolloutRequest(
        f"r{number}",
        Task("gymnasium", json.dumps(LAKE), seed=number, system="Cross the lake."),
        policy_id="p",
        group_id=group,
        limits=Limits(max_turns=6),
    )


def walk(call: ModelCall) -> str:
    return "RRDDLU"[call.position // 2 % 6]
