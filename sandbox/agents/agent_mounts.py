"""What an agent's box has of its host, read-only, by its place there: the same as here."""

import os
from collections.abc import Mapping
from typing import Any

from sandbox.agents.agent_box import NOT_MOUNTED, named_mounts
from sandbox.private_places import check_given


def mounts(config: Mapping[str, Any], imports: Mapping[str, str]) -> dict[str, str]:
    """What it imports, and the directories that `agent_config.mounts` names; blocks.

    Of what lies below /usr every box has its image's. Raises Refused, and WorkFailed(`bad_config`)
    for a named one that holds what no box may see.
    """
    shown = {place: source for place, source in imports.items() if _is_shown(place)}
    for named in named_mounts(config):
        check_given(named)
        for place, source in imports.items():
            if source != place and named.startswith(f"{place}/"):
                os.makedirs(source + named[len(place) :], exist_ok=True)  # to be mounted on
        if _is_shown(named):
            shown[named] = named
    return shown


def _is_shown(place: str) -> bool:
    return place not in NOT_MOUNTED and not place.startswith(("/usr/", "/lib/", "/lib64/"))
