"""Whether rollouts are sampled as fast as they are trained on: servers to add, or to do without.

Source: AstraFlow's balance report, every ten versions.
"""

import math

BUSY_BELOW, IDLE_ABOVE = 0.05, 0.10
"""A trainer that waits for less of its time is kept busy; for more, it lacks rollouts."""
SPARE = 1.10
"""What is kept beyond what was consumed."""


def proposed_servers(servers: int, wait_share: float, consumed: int, entered: int) -> int:
    """How many servers to sample with, of G that there are; G itself is to leave it as it is.

    w > 0.10: ceil(G / (1 − w));  w < 0.05: min(G, ceil(1.10·G·consumed/entered));  else G.
    `wait_share` is w, the trainer's Σ wait / Σ step; `consumed` and `entered` are trajectories that
    were trained on and that came to be. They grow tenfold at most, and one stays.
    """
    if wait_share > IDLE_ABOVE:
        return math.ceil(servers / max(1 - wait_share, 0.1))
    if wait_share < BUSY_BELOW and entered > 0:
        return max(1, min(servers, math.ceil(SPARE * servers * consumed / entered)))
    return servers
