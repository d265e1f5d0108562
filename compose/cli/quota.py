"""`rollcall quota`: the quotas of users."""

from typing import TYPE_CHECKING, Annotated

import typer

from rollcall.compose.cli.connection import cluster
from rollcall.compose.terminal import say

if TYPE_CHECKING:
    from rich.console import Console

    from rollcall.consumers.loop.quota_table import QuotaTable
    from rollcall.schemas.messages import Quota

User = Annotated[str, typer.Argument(help="Whose rollouts, as their requests name the user.")]
Running = Annotated[int | None, typer.Option(help="Rollouts that run at once.")]
CallsPerS = Annotated[float | None, typer.Option(help="Model calls that are sent in a second.")]
Json = Annotated[bool, typer.Option("--json", help="As JSON instead of a table.")]


def set_quota(user: User, running: Running = None, calls_per_s: CallsPerS = None) -> None:
    """Limit what a user may take; what is not named is not limited.

    It acts at once, also on rollouts that wait. What runs goes on.

    Example: rollcall quota set ann --running 8 --calls-per-s 20
    """
    from rollcall.consumers.loop.quota_table import limits_of
    from rollcall.schemas.errors import Refused
    from rollcall.schemas.messages import Quota

    limits = {"--running": running, "--calls-per-s": calls_per_s}
    if all(limit is None for limit in limits.values()):
        msg = f"nothing is limited; name {' or '.join(limits)}, or both"
        raise Refused(msg)
    for option, limit in limits.items():
        if limit == 0:
            msg = f"{option} must be above 0; leave it out where there is no such limit"
            raise Refused(msg)
    quota = Quota(user, running or 0, calls_per_s or 0.0)
    _send(user, quota)
    say(f"{user} may have {limits_of(quota)}")


def unset(user: User) -> None:
    """Take a user's quota back; that of the settings holds again.

    Example: rollcall quota unset ann
    """
    from rollcall.consumers.loop.quota_table import limits_of
    from rollcall.schemas.errors import Refused
    from rollcall.schemas.names import hint

    table = _table()
    if user not in table.records:
        near = hint(user, table.records) if table.records else "nobody has one"
        msg = f"user {user!r} has no quota; {near}"
        raise Refused(msg)
    _send(user, None)
    say(f"{user} may have {limits_of(table.default)}, as the settings say")


def list_quotas(json: Json = False) -> None:
    """List who has a quota, and what holds for all others.

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
