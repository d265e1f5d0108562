"""`rollcall cancel`, `pause`, `resume`, `drain`, `quota`: records on `control` and `quotas`."""

from typing import TYPE_CHECKING, Annotated

import typer

from rollcall.compose.cli.connection import cluster
from rollcall.compose.cli.waiting import wait_reader
from rollcall.compose.terminal import say

if TYPE_CHECKING:
    from rich.console import Console

    from rollcall.consumers.loop.quota_table import QuotaTable
    from rollcall.schemas.messages import Control, Quota

Reason = Annotated[str, typer.Option(help="Why; it is kept in the log.")]
Name = Annotated[str, typer.Argument(help="The id of a rollout or of a group.")]
Run = Annotated[str, typer.Option(help="Only rollouts of this run.")]
Worker = Annotated[str, typer.Argument(help="The worker's name, as `waiting` shows it.")]


def cancel(name: Name, reason: Reason = "") -> None:
    """End a rollout, or all rollouts of a group, as cancelled.

    Example: rollcall cancel lake-17 --reason "wrong task"
    """
    from rollcall.consumers.history.reading.known_names import require_known
    from rollcall.schemas.messages import Control

    state = wait_reader().waiting()
    rollouts, members = {name} & state.rollouts(), state.members(name)
    if rollouts:
        _send(Control("cancel", rollout_id=name, reason=reason))
    if members:
        _send(Control("cancel", group_id=name, reason=reason))
    if rollouts or members:
        count = len(rollouts | members)
        what = f"{count} open rollouts of group" if members else "rollout"
        say(f"asked for the end of {what} {name}; `rollcall waiting` shows those still open")
    elif require_known(cluster(), name):
        say(f"every rollout of group {name} has ended already; nothing to cancel")
    else:
        say(f"rollout {name} has ended already; nothing to cancel")


def pause(run: Run = "", reason: Reason = "") -> None:
    """Stop the start of requests, or only the rollouts of one run.

    Rollouts that have started go on.

    Example: rollcall pause --reason "new weights are being copied"
    """
    from rollcall.consumers.history.waiting.waiting import read_control
    from rollcall.schemas.messages import Control

    if run in read_control(cluster()).paused_runs:
        say(f"{_meant(run)} paused already")
        return
    _send(Control("pause", reason=reason, run_id=_checked(run)))
    rest = f" --run {run}" if run else ""
    what = f"begin no more rollouts of run {run}" if run else "start no more requests"
    say(f"asked the agents to {what}; `rollcall resume{rest}` reverses this")


def resume(run: Run = "", reason: Reason = "") -> None:
    """Allow the start of requests again, or of the rollouts of one run.

    Example: rollcall resume
    """
    from rollcall.consumers.history.waiting.waiting import read_control
    from rollcall.schemas.messages import Control

    if run not in read_control(cluster()).paused_runs:
        say(f"{_meant(run)} not paused")
        return
    _send(Control("resume", reason=reason, run_id=run))
    what = f"begin rollouts of run {run}" if run else "start requests"
    say(f"asked the agents to {what} again")


def _meant(run: str) -> str:
    return f"run {run} is" if run else "the agents are"


def _checked(run: str) -> str:
    """Return the run; raises Refused for an impossible name."""
    from rollcall.schemas.bounds import NAME_BYTES
    from rollcall.schemas.errors import Refused

    if len(run.encode(errors="replace")) > NAME_BYTES:
        msg = f"--run takes the name of a run, of at most {NAME_BYTES} bytes; `rollcall runs` lists"
        raise Refused(msg)
    return run


def drain(worker: Worker, reason: Reason = "") -> None:
    """Let one worker of any role finish its work in flight and exit with code 0.

    Example: rollcall drain models-2
    """
    from rollcall.consumers.history.reading.known_names import worker_names
    from rollcall.schemas.errors import Refused
    from rollcall.schemas.messages import Control
    from rollcall.schemas.names import hint

    names = worker_names(cluster())
    if worker not in names:
        near = hint(worker, names) if names else "no worker is up"
        msg = (
            f"no worker {worker!r} in any group, nor a trainer that has announced a version under "
            f"that name; {near}"
        )
        raise Refused(msg)
    _send(Control("drain", worker=worker, reason=reason))
    say(f"asked {worker} to finish its work in flight and to exit")


def _send(word: "Control") -> None:
    from rollcall.producers.control import send_control

    here = cluster()
    send_control(here.log.publisher(), here.codec, here.topics, word)


User = Annotated[str, typer.Argument(help="The user, as named in rollout requests.")]
Running = Annotated[int | None, typer.Option(help="The most rollouts that run at once.")]
CallsPerS = Annotated[float | None, typer.Option(help="The most model calls sent per second.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def set_quota(user: User, running: Running = None, calls_per_s: CallsPerS = None) -> None:
    """Set a user's quota; a limit that is not given does not apply.

    It takes effect at once, also for rollouts that wait. Running rollouts go on.

    Example: rollcall quota set ann --running 8 --calls-per-s 20
    """
    from rollcall.consumers.loop.quota_table import limits_of
    from rollcall.schemas.errors import Refused
    from rollcall.schemas.messages import Quota

    limits = {"--running": running, "--calls-per-s": calls_per_s}
    if all(limit is None for limit in limits.values()):
        msg = f"no limit is given; give {' or '.join(limits)}, or both"
        raise Refused(msg)
    for option, limit in limits.items():
        if limit == 0:
            msg = f"{option} must be above 0; leave it out for no limit"
            raise Refused(msg)
    quota = Quota(user, running or 0, calls_per_s or 0.0)
    _send_quota(user, quota)
    say(f"{user} may have {limits_of(quota)}")


def unset(user: User) -> None:
    """Remove a user's quota; the quota of the settings then applies.

    Example: rollcall quota unset ann
    """
    from rollcall.consumers.loop.quota_table import limits_of
    from rollcall.schemas.errors import Refused
    from rollcall.schemas.names import hint

    table = _table()
    if user not in table.records:
        near = hint(user, table.records) if table.records else "no user has one"
        msg = f"user {user!r} has no quota; {near}"
        raise Refused(msg)
    _send_quota(user, None)
    say(f"{user} may have {limits_of(table.default)}, as in the settings")


def list_quotas(json: Json = False) -> None:
    """List the quotas of users, and the one for all others.

    Example: rollcall quota list
    """
    from rollcall.compose.terminal import emit

    table = _table()
    users = {user: _plain(quota) for user, quota in sorted(table.records.items())}
    others = _plain(table.default)

    def show(terminal: "Console") -> None:
        from rich.table import Table

        from rollcall.compose.console import safe

        rows = Table("user", "running", "calls a second")
        for user, limits in [*users.items(), ("(all others)", others)]:
            rows.add_row(safe(user), *(f"{n:,}" if n else "" for n in limits.values()))
        terminal.print(rows)

    emit({"users": users, "others": others}, show, json=json)


def _table() -> "QuotaTable":
    """Read all quotas."""
    from rollcall.consumers.history.waiting.user_limits import read_quotas

    here = cluster()
    return read_quotas(here, here.settings.agents.quota())


def _send_quota(user: str, quota: "Quota | None") -> None:
    from rollcall.producers.control import send_quota
    from rollcall.schemas.bounds import check_quota
    from rollcall.schemas.messages import Quota

    check_quota(quota or Quota(user))
    here = cluster()
    here.log.partitions(here.topics.quotas)  # raises for a missing topic
    send_quota(here.log.publisher(), here.codec, here.topics, user, quota)


def _plain(quota: "Quota") -> dict[str, float]:
    return {"running": quota.running, "calls_per_s": quota.calls_per_s}
