"""`rollcall eval`: what recorded rollouts say about a policy, or rollouts that are asked for now.

Live ones are ordinary rollouts of purpose `evaluate` under a run id of their own: whoever trains
passes them over, and they can be evaluated again from the log by that run id.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from rich.console import Console
from rich.table import Table

from compose.evaluation import (
    Difference,
    Evaluation,
    Row,
    Tasks,
    Version,
    of_version,
    paired_by_task,
    rows,
)
from compose.runs.publish_policy import announced
from compose.runs.recipe import SHIPPED, load_recipe
from compose.submission import lines_of, publish, watch
from consumers.history.progress import RolloutProgress
from consumers.history.ranges import parse_policy
from consumers.history.selection import Selection
from consumers.request_checks import RequestChecks
from producers.submit import new_rollout_id, requests_of
from schemas.errors import Refused
from schemas.messages import RolloutRequest, Task
from schemas.names import hint

if TYPE_CHECKING:
    from compose.cluster import Cluster

BEGIN_WITHIN_S = 30.0


def offline(selection: Selection, *, purpose: str, success_at: float) -> Evaluation:
    """Fold a range of scored trajectories; of a policy's version those that were asked of it."""
    found = Evaluation(purpose, success_at)
    any_version = replace(selection, span=replace(selection.span, version=None))
    for _, scored in any_version.scored():
        found.take(scored)
    return found


def live(
    cluster: "Cluster",
    policy: str,
    tasks: str,
    *,
    n: int,
    seed: int,
    scoring_id: str,
    success_at: float,
    timeout_s: float,
    begin_within_s: float = BEGIN_WITHIN_S,
) -> tuple[str, Evaluation]:
    """Run n rollouts of each task; returns their run id and the fold.

    Raises Refused before anything is published, NotScored when nobody works on it in time.
    """
    policy_id, asked = parse_policy(policy)
    door = RequestChecks(cluster)
    wanted = list(tasks_of(tasks, policy_id, n, door))
    version = _served(cluster, policy_id, asked)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    run_id = f"eval-{policy_id}-{stamp}-{new_rollout_id()[:6]}"
    requests = list(members(wanted, n=n, run_id=run_id, version=version, seed=seed))
    for request in requests:
        door.check(request)
    found = Evaluation(success_at=success_at)
    with closing(RolloutProgress(cluster, requests, scoring_id)) as progress:
        publish(cluster, requests)
        watch(progress, timeout_s, begin_within_s=begin_within_s)
        for row in progress.rows.values():
            if row.scored is not None:
                found.take(row.scored)
    return run_id, found


def members(
    tasks: Sequence[RolloutRequest], *, n: int, run_id: str, version: int, seed: int
) -> Iterator[RolloutRequest]:
    """n rollouts of each task, a group; the same seed draws the same at every evaluation."""
    for number, task in enumerate(tasks):
        group = f"{run_id}/task/{number}"
        for member in range(n):
            yield replace(
                task,
                rollout_id=f"{group}/{member}",
                run_id=run_id,
                purpose="evaluate",
                group_id=group,
                group_size=n,
                sampling_seed=f"{seed}/{number}/{member}",
                min_policy_version=version,
                policy_version=version,
            )


def tasks_of(source: str, policy_id: str, n: int, door: RequestChecks) -> Iterator[RolloutRequest]:
    """A recipe's held-out seeds, greedy where each is asked once; or what the lines of a file say.

    Of a line its task, program, sampling and limits count.
    """
    if source in SHIPPED or source.endswith(".toml"):
        recipe, _ = load_recipe(source)
        template = recipe.template("", policy_id)
        if n == 1:
            template = replace(template, sampling=replace(template.sampling, temperature=0.0))
        for number in range(*recipe.evaluation.seeds):
            task = replace(template.task, seed=number, task_id=f"seed-{number}")
            yield replace(template, task=task)
        return
    if source != "-" and not Path(source).is_file():
        msg = f"--tasks {source!r} is neither a file nor a recipe; {hint(source, SHIPPED)}"
        raise Refused(msg)
    defaults = RolloutRequest("", Task(), policy_id=policy_id)
    read = requests_of(
        lines_of(source),
        lambda request: door.check(replace(request, policy_id=policy_id)),
        defaults=defaults,
    )
    found = [replace(request, policy_id=policy_id) for request in read]
    if not found:
        msg = f"no task in {source!r}: it holds no line that is not empty"
        raise Refused(msg)
    yield from found


def _served(cluster: "Cluster", policy_id: str, asked: int | None) -> int:
    """The version to ask for; raises Refused for one that model servers do not serve."""
    known = announced(cluster, policy_id)
    newest = max(known, default=-1)
    if asked is None:
        return max(0, newest)
    if asked in known:
        return asked
    if asked > newest:
        what = f"its newest is {newest}" if newest >= 0 else "none was announced"
        msg = f"version {asked} of {policy_id!r} was never announced; {what}"
        raise Refused(msg)
    msg = (
        f"version {asked} of {policy_id!r} is not announced any more, so nobody can serve it; the "
        f"newest is {newest}; what is recorded of it is evaluated without --tasks"
    )
    raise Refused(msg)


# What is told


def tell(
    found: Evaluation,
    *,
    policy: tuple[str, int | None] = ("", None),
    compare: tuple[str, str] | None = None,
    scoring_id: str = "",
    ks: Sequence[int] = (),
    resamples: int,
    seed: int,
) -> tuple[list[Row], Difference | None]:
    """The rows of what was asked for, and the difference of two; raises Refused."""
    versions = found.scored_by(scoring_id)
    difference = None
    if compare:
        first, second = (parse_version(text, versions) for text in compare)
        difference = paired_by_task(versions, first, second, resamples=resamples, seed=seed)
        versions = {name: versions[name] for name in (first, second)}
    elif policy[1] is not None:
        versions = {(policy[0], policy[1]): of_version(versions, (policy[0], policy[1]))}
    made = list(rows(versions, ks, resamples=resamples, seed=seed))
    for k in ks:
        if not any(k in row.pass_at for row in made):
            most = max(t.rollouts for tasks in versions.values() for t in tasks.values())
            msg = f"pass@{k} needs {k} rollouts of a task; the most that one has is {most}"
            raise Refused(msg)
    return made, difference


def parse_version(text: str, known: Mapping[Version, Tasks]) -> Version:
    """P@VERSION, or VERSION where only one policy is there; raises Refused."""
    policies = sorted({policy_id for policy_id, _ in known})
    if text.isdecimal() and len(policies) == 1:
        return policies[0], int(text)
    if "@" not in text:
        msg = f"--compare {text!r} names no version; write POLICY@VERSION, such as {policies[0]}@3"
        raise Refused(msg)
    policy_id, version = parse_policy(text)
    return policy_id, version or 0


def show(made: Sequence[Row], terminal: Console) -> None:
    """A table for each policy, then what should be known about its lines."""
    for policy_id in sorted({row.policy_id for row in made}):
        terminal.print(_table([row for row in made if row.policy_id == policy_id]))
    for row in made:
        for line in _remarks(row):
            terminal.print(line, highlight=False, soft_wrap=True)


def _table(made: Sequence[Row]) -> Table:
    families = {row.family for row in made}
    title = made[0].policy_id + (f", {made[0].family}" if len(families) == 1 else "")
    ks = sorted({k for row in made for k in row.pass_at} - {1})
    table = Table(title=title, title_justify="left")
    table.add_column("version", justify="right", no_wrap=True)
    if len(families) > 1:
        table.add_column("tasks of")
    for name in ("tasks", "rollouts", "pass@1", *(f"pass@{k}" for k in ks), "mean reward"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in made:
        table.add_row(
            str(row.version),
            *([row.family] if len(families) > 1 else []),
            f"{row.tasks:,}",
            f"{row.rollouts:,}",
            str(row.success),
            *(f"{row.pass_at[k]:.4f}" if k in row.pass_at else "" for k in ks),
            str(row.reward) if row.reward else "none",
        )
    return table


def _remarks(row: Row) -> Iterator[str]:
    name = f"{row.policy_id}@{row.version}, {row.family}:"
    if row.without_reward:
        yield f"{name} {row.without_reward:,} rollouts have no reward, so they did not succeed"
    for k, tasks in row.too_few.items():
        yield f"{name} {tasks:,} tasks have fewer than {k} rollouts and no part in pass@{k}"
    if row.mixed:
        yield f"{name} {row.mixed:,} rollouts are left out, for several versions sampled in them"


def show_difference(found: Difference, terminal: Console) -> None:
    """What came of the comparison, and on how many tasks."""
    first, second = (f"{name}@{version}" for name, version in (found.first, found.second))
    lines = [f"{second} less {first}, on the {found.tasks:,} tasks that both were given:"]
    lines += [f"  pass@1       {found.success}"]
    lines += [f"  mean reward  {found.reward}"] if found.reward else []
    if found.only_first or found.only_second:
        lines += [
            f"  left out: {found.only_first:,} tasks of {first} alone, {found.only_second:,} of "
            f"{second} alone"
        ]
    for line in lines:
        terminal.print(line, highlight=False, soft_wrap=True)


def plain(made: Sequence[Row], difference: Difference | None, run_id: str = "") -> dict[str, Any]:
    """All of it as JSON knows values."""
    told: dict[str, Any] = {"run_id": run_id} if run_id else {}
    told["versions"] = list(made)
    if difference:
        told["difference"] = difference
    found: dict[str, Any] = orjson.loads(orjson.dumps(told, option=orjson.OPT_NON_STR_KEYS))
    return found
