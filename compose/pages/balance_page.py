"""A run's balance as text."""

from rollcall.consumers.history.runs.balance_report import BalanceReport


def balance_lines(report: BalanceReport) -> list[str]:
    """Return three lines: the wait, the outcomes of the rollouts, the advice."""
    return [
        f"steps {report.first}..{report.last} of {report.run_id}: the trainer waited for "
        f"{report.wait_share:.1%} of its time",
        f"{report.produced} rollouts came: {report.used} used ({report.length_used:.1f} tokens in "
        f"the mean), {report.dropped} dropped ({report.length_dropped:.1f}), {report.cancelled} "
        f"cancelled ({report.length_cancelled:.1f})",
        _advice(report),
    ]


def _advice(report: BalanceReport) -> str:
    change, servers = report.change, report.servers
    if change > 0:
        return f"add {change} to the {_servers(servers)}: the trainer lacks rollouts"
    if change < 0:
        return f"take {-change} of the {_servers(servers)} away: more is sampled than used"
    return f"leave it at {_servers(servers)}"


def _servers(count: int) -> str:
    return "one model server" if count == 1 else f"{count} model servers"
