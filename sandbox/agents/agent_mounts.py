"""The read-only mounts of an agent's box, at the same paths as on the host."""

import os
from collections.abc import Mapping
from typing import Any

from rollcall.sandbox.agents.agent_box import NOT_MOUNTED, named_mounts
from rollcall.sandbox.private_places import check_given


def mounts(config: Mapping[str, Any], imports: Mapping[str, str]) -> dict[str, str]:
    """Return the mounts for an agent's imports and for `agent_config.mounts`; blocks.

    Paths below /usr are left out: a box has those of its image. Raises Refused, and
    WorkFailed(`bad_config`) for a named directory with content that no box may see.
    """
    shown = {place: source for place, source in imports.items() if _is_shown(place)}
    for named in named_mounts(config):
        check_given(named)
        for place, source in imports.items():
            if source != place and named.startswith(f"{place}/"):
                os.makedirs(source + named[len(place) :], exist_ok=True)  # a mount point
        if _is_shown(named):
            shown[named] = named
    return shown


def _is_shown(place: str) -> bool:
    return place not in NOT_MOUNTED and not place.startswith(("/usr/", "/lib/", "/lib64/"))
