"""The checks that each rollout request has to pass: a worker makes them before it starts one, and
`rollcall.compose.request_checks` before one is published."""

from collections.abc import Callable

from rollcall.consumers.agents.effects import Program
from rollcall.consumers.agents.outbox import PROCESS
from rollcall.consumers.agents.programs import program_digest
from rollcall.consumers.log.protocols import Log
from rollcall.schemas.bounds import check_request
from rollcall.schemas.errors import Refused, TopicsDiffer
from rollcall.schemas.messages import RolloutRequest
from rollcall.schemas.topics import Topics
from rollcall.schemas.untrusted_text import describe_exception


class UnknownPolicy(Refused):
    """A request names a policy whose calls topic does not exist."""


class StartChecks:
    """Refuses requests that cannot be started."""

    def __init__(self, log: Log, topics: Topics, programs: Callable[[str], Program]) -> None:
        self.log = log
        self.topics = topics
        self.programs = programs

    def check(self, request: RolloutRequest) -> str:
        """Return the digest of the program's source. Raises Refused."""
        check_request(request)
        digest = self._program_digest(request.agent)
        self._check_policy(request.policy_id)
        return digest

    def _program_digest(self, name: str) -> str:
        try:
            return program_digest(self.programs(name))
        except (Refused, *PROCESS):
            raise
        except Exception as error:  # loading a user's module may raise anything
            msg = f"program {name!r} cannot be loaded: {describe_exception(error)}"
            raise Refused(msg) from error

    def _check_policy(self, policy_id: str) -> None:
        try:
            self.log.partitions(self.topics.calls(policy_id))
        except TopicsDiffer as error:
            msg = (
                f"unknown policy {policy_id!r}; its calls topic is missing, add it with "
                f"`rollcall topics apply --policy {policy_id}`"
            )
            raise UnknownPolicy(msg) from error
