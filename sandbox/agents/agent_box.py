"""Whether an agent's process lives in a box, and in which: `agent_config.box`.

`none`: on the worker's host, as the worker's user. `own`: in a box of its own, beside that of its
task; it sees its interpreter and what it imports, and nothing of the task but by its steps. `task`:
in the task's own box, with the tools that it brings. In a box nothing but the agent's own line to
its worker answers: there is no network.

Pure: the program `hosted` asks here too.
"""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from schemas.errors import Refused
from schemas.names import unknown

if TYPE_CHECKING:
    from sandbox.boxes.box import Box

Where = Literal["none", "own", "task", "beside"]
WHERE: Mapping[str, str] = {
    "none": "on the worker's host, as its user",
    "own": "in a box of its own",
    "task": "in the box of its task",
}
BESIDE: Where = "beside"
"""In a box of its own where the worker's boxes isolate who names none, as its task does."""
SHELL, LOCAL = "shell", "local"
DRIVER = "bubblewrap"
"""Of boxes of agents' own: it alone can show what an agent imports, whatever its task is in."""
FINISH_WORD = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""What a command prints that ends an episode of `shell`, unless its config has another."""
SHOW_NOTHING = frozenset(("docker",))
"""Drivers whose boxes have nothing of the host: an agent in one has the programs of its image."""
PORT = 8000
"""Where an agent finds its endpoint in a box: 127.0.0.1, in every one the same."""
HOME_IN_TASK = "/tmp/agent"
"""Not among the task's files: what they have become is its work."""
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
"""Too much, or what a box has of its own."""


def where(config: Mapping[str, Any], environment: str, shown: Mapping[str, Any]) -> Where:
    """Where an agent of this `agent_config` lives, beside an environment and its config.

    Where nothing is said an agent beside a box that isolates has one of its own: else whatever the
    model says could reach through the agent what it cannot reach through its commands.
    """
    if "box" in config:
        return cast(Where, config["box"])
    if environment != SHELL or shown.get("box") == LOCAL:
        return "none"
    return "own" if shown.get("box") else BESIDE


def check_agent_box(config: Mapping[str, Any], environment: str, shown: Mapping[str, Any]) -> None:
    """Refuse what cannot be, before anything is started. Raises Refused."""
    name = config.get("box", "none")
    if not isinstance(name, str) or name not in WHERE:
        raise unknown("agent_config.box", str(name), WHERE)
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
    """The directories that a rollout names. Raises Refused."""
    found = config.get("mounts", [])
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        msg = f"agent_config.mounts is {str(found)[:100]!r}; it must be a list of directories"
        raise Refused(msg)
    return found


@dataclass(frozen=True, slots=True)
class AgentBox:
    """A box, as an agent that is started in it finds it."""

    box: "Box"
    home: str
    """Its HOME and its TMPDIR."""

    def order(self) -> dict[str, object]:
        """What the fork server is told. Raises WorkFailed, see `Box.entrance`."""
        begins_in = self.box.workdir or self.box.directory.decode()
        return {"box": self.box.entrance(), "begins_in": begins_in, "directory": self.home}
