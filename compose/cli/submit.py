"""`rollcall submit`."""

from typing import TYPE_CHECKING, Annotated

import typer

from rollcall.compose.cli.connection import cluster

if TYPE_CHECKING:
    from rollcall.schemas.messages import RolloutRequest

Source = Annotated[str, typer.Argument(help="A JSON Lines file, or - for standard input.")]
Dataset = Annotated[
    str, typer.Option(help="A reasoning-gym data set instead of a file, such as chain_sum.")
]
Count = Annotated[int, typer.Option(min=1, help="The number of entries of the data set.")]
GroupSize = Annotated[int, typer.Option(min=1, help="Rollouts of each task.")]
Policy = Annotated[str, typer.Option(help="The policy of lines that name none.")]
Agent = Annotated[str, typer.Option(help="The agent program of lines that name none.")]
Again = Annotated[bool, typer.Option("--again", help="Use new ids, to run the same tasks again.")]
Wait = Annotated[bool, typer.Option(help="Wait until all are scored.")]
Timeout = Annotated[float, typer.Option(help="The longest wait.")]


def submit(
    source: Source = "",
    dataset: Dataset = "",
    count: Count = 8,
    group_size: GroupSize = 1,
    policy: Policy = "policy",
    agent: Agent = "",
    again: Again = False,
    wait: Wait = False,
    timeout_s: Timeout = 600.0,
) -> None:
    """Publish rollout requests, one JSON object a line.

    An id that was requested before is refused as `repeated`, so a file may be submitted twice.
    """
    from rollcall.compose.submission import submit_all
    from rollcall.producers.submit import asked_again
    from rollcall.schemas.errors import Refused
    from rollcall.schemas.messages import RolloutRequest, Task

    if bool(source) == bool(dataset):
        found = "both" if source else "neither"
        msg = f"give a JSON Lines file (- is standard input) or --dataset; found {found}"
        raise Refused(msg)
    if again and dataset:
        msg = "--again is for the ids in a file; rollouts of a data set have new ids every time"
        raise Refused(msg)
    known = agent or ("react" if source else "single_turn")
    defaults = RolloutRequest("", Task(), known, policy_id=policy)
    requests = _requests(source, dataset, count, group_size, defaults)
    asked = list(asked_again(requests)) if again else requests
    submit_all(cluster(), asked, wait=wait, timeout_s=timeout_s)


def _requests(
    source: str, dataset: str, count: int, group_size: int, defaults: "RolloutRequest"
) -> "list[RolloutRequest]":
    """Read all requests. Raises Refused before the first is sent, also if there is none."""
    from rollcall.compose.cluster import require_topics
    from rollcall.compose.request_checks import RequestChecks, dataset_requests
    from rollcall.compose.submission import lines_of, source_name
    from rollcall.producers.submit import requests_of
    from rollcall.schemas.errors import Refused

    here, lines = cluster(), lines_of(source) if source else []
    require_topics(here)
    checks = RequestChecks(here)
    if dataset:
        return list(dataset_requests(dataset, count, group_size, defaults, checks))
    requests = list(requests_of(lines, checks.check, defaults=defaults, group_size=group_size))
    if not requests:
        msg = f"no requests in {source_name(source)}: it holds no line that is not empty"
        raise Refused(msg)
    return requests
