"""Checks of a request before it is published: refuse the ones that would certainly fail.

They are the checks of the worker that starts it, and those of its task and of its size.
"""

from collections.abc import Iterator
from typing import Any

import orjson

from rollcall.consumers.agents.programs import program_of
from rollcall.consumers.agents.start_checks import StartChecks, UnknownPolicy
from rollcall.consumers.history.reading.history import History
from rollcall.producers.publisher import VALUE_LIMIT_BYTES
from rollcall.producers.submit import grouped, new_rollout_id
from rollcall.sandbox.agents.agent_box import check_agent_box
from rollcall.sandbox.agents.shipped import check_agent
from rollcall.sandbox.environment import check_environment, make_plain
from rollcall.sandbox.environments.shell_config import check_shell
from rollcall.sandbox.tasks.task_names import named_task
from rollcall.schemas.errors import Refused, WireError, WorkFailed
from rollcall.schemas.messages import RolloutRequest, Task


class RequestChecks:
    """Refuses requests that would certainly fail; one per submission. Raises Unavailable."""

    def __init__(self, history: History) -> None:
        self.topics = history.topics
        self.codec = history.codec
        self.topic_names = history.log.topic_names()
        self.starts = StartChecks(history.log, history.topics, program_of)
        self.rollout_ids: set[str] = set()
        self.named_tasks: set[str] = set()

    def check(self, request: RolloutRequest) -> None:
        """Raise Refused if the request would fail."""
        if request.rollout_id in self.rollout_ids:
            msg = f"rollout_id {request.rollout_id!r} came before; every rollout needs its own"
            raise Refused(msg)
        self.rollout_ids.add(request.rollout_id)
        self._check_start(request)
        self._check_shell(_check_task(request))
        self._check_size(request)

    def _check_shell(self, config: dict[str, Any] | None) -> None:
        """Check the config, and the directory that it names, once for all requests."""
        if config is None:
            return
        name = str(config.get("task") or "")
        if name and name not in self.named_tasks:
            named_task(config)
            self.named_tasks.add(name)
        check_shell(config)

    def _check_start(self, request: RolloutRequest) -> None:
        try:
            self.starts.check(request)
        except UnknownPolicy as error:
            raise self._without_topic(request.policy_id) from error

    def _without_topic(self, policy_id: str) -> Refused:
        """Return the error for a policy without a topic, with those that have one."""
        calls = self.topics.calls("")
        known = sorted(
            name.removeprefix(calls) for name in self.topic_names if name.startswith(calls)
        )
        return Refused(
            f"policy {policy_id!r} has no topic {self.topics.calls(policy_id)!r}; run `rollcall "
            f"topics apply --policy {policy_id}`, or name one that is there with --policy "
            f"({', '.join(known) or 'there is none'})"
        )

    def _check_size(self, request: RolloutRequest) -> None:
        try:
            size = len(self.codec.encode(self.topics.requests, request))
        except WireError as error:
            raise Refused(str(error)) from error
        if size > VALUE_LIMIT_BYTES:
            msg = f"a request of {size:,} bytes; at most {VALUE_LIMIT_BYTES:,} fit into a record"
            raise Refused(msg)


def _check_task(request: RolloutRequest) -> dict[str, Any] | None:
    """Return the config of a `shell`, None for other environments. Raises Refused."""
    task = request.task
    if task.environment:
        check_environment(task.environment)
    elif request.agent == "react":
        msg = "program 'react' acts in task.environment, which is empty; or name another as agent"
        raise Refused(msg)
    elif not task.prompt:
        msg = "the task has neither an environment nor a prompt"
        raise Refused(msg)
    environment_config = _check_object("task.environment_config", task.environment_config)
    config = _check_object("agent_config", request.agent_config)
    if request.agent == "hosted":
        check_agent(config)
        check_agent_box(config, task.environment, environment_config)
    return environment_config if task.environment == "shell" else None


def _check_object(name: str, text: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError as error:
        msg = f"{name} is not JSON: {error}"
        raise Refused(msg) from error
    if not isinstance(value, dict):
        msg = f"{name} must be a JSON object, found {text!r:.80}"
        raise Refused(msg)
    return value


def dataset_requests(
    dataset: str, count: int, group_size: int, defaults: RolloutRequest, checks: RequestChecks
) -> Iterator[RolloutRequest]:
    """Yield requests for the entries 0 to count - 1 of a reasoning-gym data set; a seed fixes one.

    Raises Refused for a data set that does not exist.
    """
    config = orjson.dumps({"dataset": dataset}).decode()
    try:
        make_plain("reasoning_gym", config).close()
    except WorkFailed as error:
        raise Refused(str(error)) from error
    for seed in range(count):
        task = Task("reasoning_gym", config, seed, task_id=f"{dataset}-{seed}")
        request = RolloutRequest(
            new_rollout_id(), task, defaults.agent, policy_id=defaults.policy_id
        )
        checks.check(request)
        yield from grouped(request, group_size)
