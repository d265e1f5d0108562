"""`rollcall quota`: the quotas of users."""

from typing import TYPE_CHECKING, Annotated

import typer

from rollcall.compose.cli.connection import cluster
from rollcall.compose.terminal import say

if TYPE_CHECKING:
    from rich.console import Console

    from rollcall.consumers.loop.quota_table import QuotaTable
    from rollcall.schemas.messages import Quota

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
    _send(user, quota)
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
    _send(user, None)
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


def _send(user: str, quota: "Quota | None") -> None:
    from rollcall.producers.control import send_quota
    from rollcall.schemas.bounds import check_quota
    from rollcall.schemas.messages import Quota

    check_quota(quota or Quota(user))
    here = cluster()
    here.log.partitions(here.topics.quotas)  # raises for a missing topic
    send_quota(here.log.publisher(), here.codec, here.topics, user, quota)


def _plain(quota: "Quota") -> dict[str, float]:
    return {"running": quota.running, "calls_per_s": quota.calls_per_s}
