"""Use of quotas by user: reported as figures, never as a breach."""

from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rollcall.compose.pages.audit_page import print_report
from rollcall.consumers.audit.audit import audit
from rollcall.consumers.audit.quota_use import HEARD_MS, QuotaUse
from rollcall.consumers.audit.report import Report
from rollcall.producers.control import send_quota
from rollcall.schemas.messages import Quota
from tests.support.avro_messages import FEW
from tests.support.hand_answers import answer, calls
from tests.support.journals import request
from tests.support.programs import ASKS
from tests.support.rig import Rig

SINCE = 1_800_000_000_000


@pytest.fixture
def rig() -> Rig:
    """Two journals, and a clock that stands at a full minute."""
    rig = Rig(partitions=2)
    rig.clock.now -= rig.clock.now % 60
    return rig


def limit(rig: Rig, **limits: int) -> None:
    send_quota(rig.pen, rig.codec, rig.topics, "ann", Quota("ann", **limits))  # type: ignore[arg-type]
    rig.clock.pass_by(HEARD_MS / 1000 + 1)


def ask_many(rig: Rig, count: int, first: int = 0) -> None:
    """For ann, in both partitions in turn."""
    for number in range(first, first + count):
        rig.ask(request(f"ann{number}", ASKS, user="ann"), number % 2)


def page(report: Report) -> str:
    out = StringIO()
    print_report(report, Console(file=out, width=200))
    return out.getvalue()


def test_use_above_a_quota_is_reported_and_breaks_nothing(rig: Rig) -> None:
    """Each of two workers grants at least one."""
    limit(rig, running=1)
    loops = rig.agents("a1"), rig.agents("a2")
    ask_many(rig, 6)
    rig.settle(*loops)

    report = audit(rig)

    [figure] = report.quotas
    assert (figure.most_running, figure.over) == (2, True)
    assert report.ok
    assert report.plain()["quotas"][0]["over"] is True
    told = page(report)
    assert "quota of ann: 2 ran at once at 2023-11-14 22:13:06 UTC, 1 may" in told
    assert "no breach: workers share a quota" in told


def test_a_user_within_the_quota_is_counted(rig: Rig) -> None:
    limit(rig, running=2)
    loop = rig.agents()
    ask_many(rig, 6)
    rig.settle(loop)
    for call in calls(rig)[:2]:
        answer(rig, call)
    rig.settle(loop)

    report = audit(rig)

    [figure] = report.quotas
    assert (figure.most_running, figure.over) == (2, False)
    assert "1 user had no more than the quota" in page(report)


def test_rollouts_begun_before_the_quota_do_not_count(rig: Rig) -> None:
    loop = rig.agents()
    ask_many(rig, 3)
    rig.settle(loop)
    limit(rig, running=1)
    rig.settle(loop)

    [figure] = audit(rig).quotas
    assert (figure.most_running, figure.running_at_ms, figure.over) == (0, 0, False)

    limit(rig, running=4)
    ask_many(rig, 1, first=3)
    rig.settle(loop)

    [figure] = audit(rig).quotas
    assert figure.most_running == 4


def test_a_rollout_without_commands_runs_from_its_first_answer(rig: Rig) -> None:
    limit(rig, running=1)
    loops = rig.agents("a1"), rig.agents("a2")
    ask_many(rig, 2)
    rig.settle(*loops)
    first, second = calls(rig)
    for partition in rig.log.topics[rig.topics.calls("p")]:
        partition.records = [None] * len(partition.records)
    answer(rig, first)
    rig.clock.pass_by(1.0)
    answer(rig, second)

    [figure] = audit(rig).quotas

    assert figure.most_running == 2


def test_a_log_without_quotas_reports_none(rig: Rig) -> None:
    ask_many(rig, 2)
    rig.settle(rig.agents())

    assert audit(rig).quotas == []
    assert "quota" not in page(audit(rig))


SPANS = st.tuples(st.integers(-90, 90), st.integers(0, 90), st.sampled_from(["sent", "heard", ""]))


@given(st.lists(SPANS, max_size=12))
@FEW
def test_quota_figures_equal_those_of_a_full_scan(spans: list[tuple[int, int, str]]) -> None:
    use = QuotaUse({"ann": Quota("ann", running=1)}, {"ann": SINCE - HEARD_MS})
    runs = []
    for owner, (begins, lasts, told) in enumerate(spans, 1):
        began, ended = SINCE + begins * 60_000, SINCE + (begins + lasts) * 60_000
        use.ended("ann", owner, began if told == "heard" else 0, ended)
        if told == "sent":
            use.sent(owner, began + 5)
            use.sent(owner, began)
        if told:
            runs.append((began, ended))

    [figure] = use.figures()

    judged = [began for began, _ in runs if began >= SINCE]
    running = [sum(b <= at < e for b, e in runs) for at in judged]
    assert figure.most_running == max(running, default=0)
    assert figure.over == (figure.most_running > 1)
