"""The setting `agent_config.box`: the box in which an agent's process runs, if any.

`none`: on the worker's host, as the worker's user. `own`: in a box of its own, beside that of its
task; it sees its interpreter and its imports, and reaches the task only by steps. `task`: in the
task's own box, with the tools that are there. A box has no network: the agent reaches only its own
endpoint at its worker (its line).

Pure: the program `hosted` uses it too.
"""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from rollcall.schemas.errors import Refused
from rollcall.schemas.names import unknown_name

if TYPE_CHECKING:
    from rollcall.sandbox.boxes.box import Box

Where = Literal["none", "own", "task", "beside"]
WHERE: Mapping[str, str] = {
    "none": "on the worker's host, as its user",
    "own": "in a box of its own",
    "task": "in the box of its task",
}
BESIDE: Where = "beside"
"""The place of an agent whose task names no driver: its own box if the default isolates."""
SHELL, LOCAL = "shell", "local"
DRIVER = "bubblewrap"
"""The driver of agents' own boxes: it alone can mount an agent's imports."""
FINISH_WORD = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""The default output of a command that ends an episode of `shell`."""
SHOW_NOTHING = frozenset(("docker",))
"""Drivers whose boxes have no host mounts: an agent in one uses the programs of its image."""
PORT = 8000
"""The port of an agent's endpoint on 127.0.0.1 in every box."""
HOME_IN_TASK = "/tmp/agent"
"""The agent's HOME in its task's box, outside of the task's files, whose changes are its work."""
NOT_MOUNTED = frozenset(
    (
        "/",
        "/bin",
        "/dev",
        "/etc",
        "/home",
        "/lib",
        "/proc",
        "/root",
        "/sys",
        "/tmp",
        "/usr",
        "/var",
        "/w",
    )
)
"""Paths that are not mounted: they expose too much, or a box has its own."""


def where(config: Mapping[str, Any], environment: str, shown: Mapping[str, Any]) -> Where:
    """Return where an agent of this `agent_config` runs, given an environment and its config.

    By default an agent whose task has an isolating box gets a box of its own: else the model could
    reach through the agent what its commands cannot reach.
    """
    if "box" in config:
        return cast(Where, config["box"])
    if environment != SHELL or shown.get("box") == LOCAL:
        return "none"
    return "own" if shown.get("box") else BESIDE


def check_agent_box(config: Mapping[str, Any], environment: str, shown: Mapping[str, Any]) -> None:
    """Check the setting before anything is started. Raises Refused."""
    name = config.get("box", "none")
    if not isinstance(name, str) or name not in WHERE:
        raise unknown_name("agent_config.box", str(name), WHERE)
    if name == "task" and (environment != SHELL or shown.get("box") == LOCAL):
        has = f"{environment!r} with box 'local'" if environment == SHELL else repr(environment)
        msg = "agent_config.box is 'task': the agent lives in the box of its task, and that is one "
        msg += f"of environment 'shell' with box 'auto', 'bubblewrap' or 'docker'; found {has}"
        raise Refused(msg)
    for place in named_mounts(config):
        whole = place.startswith("/") and posixpath.normpath(place) == place and "\0" not in place
        if not whole or place in NOT_MOUNTED:
            msg = f"agent_config.mounts has {place[:100]!r}; it names directories of the worker's "
            msg += "host that the agent may read in its box, such as '/opt/my_agent'"
            raise Refused(msg)


def named_mounts(config: Mapping[str, Any]) -> list[str]:
    """Return the directories in `agent_config.mounts`. Raises Refused."""
    found = config.get("mounts", [])
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        msg = f"agent_config.mounts is {str(found)[:100]!r}; it must be a list of directories"
        raise Refused(msg)
    return found


@dataclass(frozen=True, slots=True)
class AgentBox:
    """A box in which an agent is started."""

    box: "Box"
    home: str
    """The agent's HOME and TMPDIR."""

    def order(self) -> dict[str, object]:
        """Return the box's part of a request to the fork server. Raises WorkFailed (`entrance`)."""
        begins_in = self.box.workdir or self.box.directory.decode()
        return {**self.box.entrance(), "begins_in": begins_in, "directory": self.home}
