"""Commands as functions, for a user's own Python: `rollcall.run`, `rollcall.submit` and so on.

They use the settings of the working directory, as the commands do. Their docstrings are the
documentation for users.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rollcall.compose.cli import connection
from rollcall.compose.cli.range_options import parse, selection_of
from rollcall.consumers.history.reading.selection import Selection
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import RolloutRequest, ScoredTrajectory, Trajectory
from rollcall.schemas.names import unknown_name


def run(
    recipe: str | Path,
    *,
    seed: int = 7,
    log: str = "kafka",
    tasks: Path | None = None,
    resume: bool = False,
    summary: Path | None = None,
) -> Mapping[str, Any]:
    """Run a recipe to its end, as `rollcall run` does, and return its figures.

    `recipe` is a TOML file or the name of a shipped recipe. With `log="memory"` all groups run in
    this process and nothing is kept. `tasks` is a folder of tasks in place of the recipe's own,
    `summary` a file for the figures. Prints its progress. Raises Refused for a recipe or a setting
    that cannot work.
    """
    from rollcall.compose.log_setup import set_up

    if resume and tasks is not None:
        msg = "a resumed run goes on with the tasks that it began with; leave its tasks out"
        raise Refused(msg)
    if log == "memory":
        if resume:
            msg = "a run in memory keeps nothing that could be resumed"
            raise Refused(msg)
        from rollcall.compose.conductor.in_memory import run_in_memory

        set_up("memory", "memory")
        settings = connection.settings()
        return run_in_memory(str(recipe), settings, seed=seed, summary=summary, tasks=tasks)
    if log != "kafka":
        raise unknown_name("log", log, ["kafka", "memory"])
    from rollcall.compose.conductor.conductor import conduct
    from rollcall.compose.console import PlainConsole

    set_up("conductor", "conductor")
    return conduct(
        str(recipe),
        connection.settings(),
        seed=seed,
        resume=resume,
        summary=summary,
        terminal=PlainConsole(),
        tasks=tasks,
    )


def submit(
    requests: Iterable[Mapping[str, Any]],
    *,
    policy: str = "policy",
    agent: str = "react",
    group_size: int = 1,
    wait: bool = False,
    timeout_s: float = 600.0,
) -> list[str]:
    """Publish rollout requests and return the ids of their rollouts.

    A request is a mapping with the keys of a line for `rollcall submit`; `policy` and `agent` are
    used where it names none. Each request becomes `group_size` rollouts. With `wait`, returns when
    all are scored, and prints their progress. Raises Refused before anything is published if a
    request would fail, and NotScored after `timeout_s` seconds.
    """
    from rollcall.compose.cluster import require_topics
    from rollcall.compose.request_checks import RequestChecks
    from rollcall.compose.submission import submit_all
    from rollcall.producers.submit import rollouts_of
    from rollcall.schemas.messages import Task

    given = [_mapping(number, each) for number, each in enumerate(requests)]
    here = connection.cluster()
    require_topics(here)
    checks = RequestChecks(here)
    defaults = RolloutRequest("", Task(), agent, policy_id=policy)
    asked: list[RolloutRequest] = []
    for each in given:
        asked += rollouts_of(each, checks.check, defaults, group_size)
    if not asked:
        msg = "there are no requests to submit"
        raise Refused(msg)
    submit_all(here, asked, wait=wait, timeout_s=timeout_s)
    return [request.rollout_id for request in asked]


def _mapping(number: int, request: object) -> Mapping[str, Any]:
    """Return an item of a user's list of requests. Raises Refused for one that is no mapping."""
    if isinstance(request, Mapping):
        return request
    msg = (
        f"requests[{number}] is {request!r:.80}, of type {type(request).__name__}; give a list of "
        "mappings, each with the keys of a line for `rollcall submit`"
    )
    raise Refused(msg)


def trajectories(
    run: str = "", *, policy: str = "", since: str = "", until: str = ""
) -> Iterator[Trajectory]:
    """Yield the trajectories of a run, or of another range of history, as they lie in the log.

    `policy` is P or P@VERSION; `since` and `until` are times such as 2h (ago) or ISO 8601. What is
    left out restricts nothing. Joins no consumer group and changes nothing. Raises Refused if
    there are none.
    """
    return (each for _, each in _selection(run, policy, since, until).trajectories())


def scored_trajectories(
    run: str = "", *, policy: str = "", since: str = "", until: str = ""
) -> Iterator[ScoredTrajectory]:
    """Yield trajectories with their rewards, one for each scoring; as `trajectories` otherwise."""
    return (each for _, each in _selection(run, policy, since, until).scored())


def _selection(run: str, policy: str, since: str, until: str) -> Selection:
    return selection_of(connection.cluster(), parse(since, until, run, policy), None)
