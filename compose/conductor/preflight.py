"""Try a run's tasks before anything is published, and refuse those that can only fail.

Agents and environments workers like those of the run, on an in-memory log, take each task up to its
first model call. Environment, configuration, program and agent are then known to begin, without a
model call.
"""

import inspect
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace

from rollcall.compose.runs.run_folder import RunFolder
from rollcall.compose.settings import Settings
from rollcall.compose.teacher_scorer import teacher_directory
from rollcall.compose.workers.worker_factory import WorkerFactory
from rollcall.consumers.history.rollouts.failures import has_failed
from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.consumers.log.protocols import Reader
from rollcall.producers.submit import Submitter
from rollcall.sandbox import scorers, user_code
from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.errors import FailureCode, Refused, WorkFailed
from rollcall.schemas.messages import RolloutRequest, Trajectory
from rollcall.schemas.objects import ObjectStore
from rollcall.schemas.topics import Topics, wanted

MOST_TASKS = 8
"""The most tasks of a folder that are tried."""
FLUSH_S = 10.0
PAUSE_S = 0.002


def preflight(folder: RunFolder, settings: Settings, *, watched: bool) -> None:
    """Raise Refused, with the reason, if a task of a run cannot begin or a scorer not be called.

    `watched` as in `WorkerFactory`: sessions run in threads, so that a slow one can be given up.
    """
    for part in folder.parts():
        for scorer in part.recipe.scorers:
            _check_scorer(scorer.partition("*")[0])
    with tempfile.TemporaryDirectory(prefix="rollcall-") as directory:
        store = ObjectStore(f"{directory}/objects", above_bytes=settings.objects.above_bytes)
        policies = [part.policy_id for part in folder.parts()]
        PreflightTrial(settings, policies, store, watched=watched).take(_requests(folder))


def _requests(folder: RunFolder) -> list[RolloutRequest]:
    """Return one request per task: the first of a folder, else the first seed of either kind."""
    draws, plan = folder.draws(), folder.heldout()
    seeds = [draws.seed_range[0], plan.seeds[0]] if plan.seeds[1] > plan.seeds[0] else [0]
    if draws.tasks:
        seeds = [*range(min(MOST_TASKS, len(draws.tasks)))]
    return [
        replace(draws.request(number, seed), rollout_id=f"preflight-{number}", group_size=1)
        for number, seed in enumerate(seeds)
    ]


def _check_scorer(name: str) -> None:
    """Raise Refused for a scorer that cannot be imported, or be called with a trajectory."""
    if teacher_directory(name) is not None:
        return  # its directory was checked, and the worker loads its weights
    try:
        function = user_code.load("scorer", name, scorers.SHIPPED)
        with user_code.convert_errors(
            FailureCode.BAD_CONFIG, f"scorer {name!r} hides its parameters"
        ):
            signature = inspect.signature(function)
    except WorkFailed as error:
        raise Refused(str(error)) from error
    host = {"host": None} if "host" in signature.parameters else {}
    try:
        signature.bind(None, **host)
    except TypeError as error:
        msg = f"scorer {name!r} cannot be called with a trajectory alone: {error}"
        raise Refused(msg) from error


class PreflightTrial:
    """A trial with workers that take requests up to their first model call."""

    def __init__(
        self, settings: Settings, policies: Sequence[str], store: ObjectStore, *, watched: bool
    ) -> None:
        topics = Topics(settings.prefix)
        log = MemoryLog(wanted(settings.prefix, policies))
        codec = Codec(LocalRegistry(), objects=store)
        factory = WorkerFactory(log, codec, topics, settings, watched=watched)
        self._log, self._codec, self._topics = log, codec, topics
        self._calls = [topics.calls(policy_id) for policy_id in policies]
        self._loops = [
            factory.agents("preflight-agents"),
            factory.environments("preflight-environments"),
        ]

    def take(self, requests: Sequence[RolloutRequest]) -> None:
        """Raise Refused if one fails before its first model call; leaves nothing open."""
        names = [*self._calls, self._topics.trajectories]
        try:
            with closing(self._log.reader(names)) as reader:
                self._publish(requests)
                self._until_begun(reader, {request.rollout_id for request in requests})
        finally:
            for loop in self._loops:
                loop.role.leave(patient=False)
                loop.role.close()

    def _publish(self, requests: Iterable[RolloutRequest]) -> None:
        publisher = self._log.publisher()
        submitter = Submitter(publisher, self._codec, self._topics)
        submitter.publish(*requests)
        publisher.flush(FLUSH_S)

    def _until_begun(self, reader: Reader, waited: set[str]) -> None:
        """Run until each has made a model call or ended. The workers' own deadlines end it."""
        while waited:
            moved = sum(loop.turn(0.0) for loop in self._loops)
            for record in reader.poll(0.0):
                if record.topic == self._topics.trajectories:
                    trajectory = self._codec.decode(record.value, Trajectory)
                    _require_no_failure(trajectory)
                    waited.discard(trajectory.rollout_id)
                else:
                    waited.discard((record.key or b"").decode())
            if not moved:
                time.sleep(PAUSE_S)


def _require_no_failure(trajectory: Trajectory) -> None:
    if has_failed(trajectory):
        request = trajectory.request
        seed = f" (seed {request.task.seed})" if request else ""
        code = trajectory.code or trajectory.status
        msg = f"a session of its task{seed} fails before a model is asked: {code}: "
        raise Refused(msg + trajectory.reason)
