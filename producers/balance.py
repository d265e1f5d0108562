"""Balance of sampling and training: proposes a number of model servers.

Source: AstraFlow's balance report, every ten versions.
"""

import math

BUSY_BELOW, IDLE_ABOVE = 0.05, 0.10
"""Shares of a trainer's time in waits: below the first it is busy, above the second starved."""
SPARE = 1.10
"""Margin over the number of trajectories that were consumed."""


def proposed_servers(servers: int, wait_share: float, consumed: int, entered: int) -> int:
    """Return the proposed number of servers, given G (`servers`); G means no change.

    w > 0.10: ceil(G / (1 − w));  w < 0.05: min(G, ceil(1.10·G·consumed/entered));  else G.
    `wait_share` is w, the trainer's Σ wait / Σ step; `consumed` and `entered` are trajectories that
    were trained on and that were produced. The result is at most 10·G and at least one.
    """
    if wait_share > IDLE_ABOVE:
        return math.ceil(servers / max(1 - wait_share, 0.1))
    if wait_share < BUSY_BELOW and entered > 0:
        return max(1, min(servers, math.ceil(SPARE * servers * consumed / entered)))
    return servers
