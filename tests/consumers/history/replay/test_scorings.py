"""Scorings: which of them owe scores, and how they are retired."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from rollcall.compose.pages.audit_page import print_report
from rollcall.consumers.audit.audit import audit
from rollcall.consumers.history.replay.scorings import retire_scoring, scorings
from rollcall.consumers.log.protocols import Commit
from rollcall.consumers.loop.scoring_retirement import RETIRED, retired, retired_word
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import RolloutRequest, Task
from tests.support.command_line import call, refused, rollcall
from tests.support.memory_cluster import CORRIDOR, POLICY, MemoryCluster


@pytest.fixture
def cluster() -> MemoryCluster:
    """Three trajectories with scores of "default"; "other" was started once and stopped again."""
    made = MemoryCluster()
    made.hire(lambda call: "left")
    for number in range(3):
        asked = RolloutRequest(f"r{number}", Task(CORRIDOR, seed=number), policy_id=POLICY)
        made.ask(replace(asked, scorings=("default", "other")))
    made.finish()
    for worker in made.log.crew:
        worker.stop()
    made.log.crew = ()
    group = made.log.group("t.rewards.other")
    group.committed = {("t.trajectories", number): (0, "1;") for number in range(3)}
    return made


def test_a_retired_scoring_owes_no_scores_and_the_report_says_why(
    cluster: MemoryCluster,
) -> None:
    before = audit(cluster, drained=True)

    state = retire_scoring(cluster, "other", "only a try")
    after = audit(cluster, drained=True)

    out = io.StringIO()
    print_report(after, Console(file=out, width=120))
    assert (before.lost, after.ok, state.behind) == (3, True, 3)
    assert "scoring other owes no scores: retired 20" in out.getvalue()
    assert "only a try" in out.getvalue()


def test_retiring_a_scoring_changes_no_offset(cluster: MemoryCluster) -> None:
    before = cluster.log.committed("t.rewards.default", "t.trajectories")

    retire_scoring(cluster, "default", "done with")

    assert cluster.log.committed("t.rewards.default", "t.trajectories") == before


def test_a_restarted_scoring_worker_resumes_and_owes_scores_again(
    cluster: MemoryCluster,
) -> None:
    retire_scoring(cluster, "default", "done with")

    cluster.hire(lambda call: "left")
    cluster.ask(RolloutRequest("later", Task(CORRIDOR), policy_id=POLICY))
    cluster.finish()
    for worker in cluster.log.crew:
        worker.stop()

    found = {s.scoring_id: s for s in scorings(cluster)}
    assert (found["default"].retired, found["default"].behind) == (None, 0)
    assert len(cluster.log.all("t.trajectories.scored")) == 4


def test_the_list_names_the_scorings_that_owe_scores(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    retire_scoring(cluster, "other", "only a try")

    call(cluster, "scorings", "list")

    shown = capsys.readouterr().out
    assert all(word in shown for word in ("default", "yes", "other", "no, retired", "only a try"))


def test_a_live_unknown_or_unexplained_scoring_is_not_retired(
    cluster: MemoryCluster,
) -> None:
    for scoring_id, reason, says in (
        ("othr", "why", "'othr'"),
        ("other", " ", "say why with --reason"),
    ):
        with pytest.raises(Refused, match=says):
            retire_scoring(cluster, scoring_id, reason)
    cluster.hire(lambda call: "left")
    cluster.finish()

    with pytest.raises(Refused, match=r"`rollcall drain .*` first"):
        retire_scoring(cluster, "default", "why")


def test_a_scoring_is_retired_only_if_every_partitions_commit_says_so() -> None:
    word = retired_word("now", "a;b")
    both = [Commit("t", number, 0, word) for number in range(2)]

    assert retired(both) == "now: a;b"
    assert retired([both[0], Commit("t", 1, 0, "1;")]) is None
    assert retired([]) is None
    assert retired([Commit("t", 0, 0, RETIRED)]) is None


def test_the_command_line_has_scorings_commands(tmp_path: Path) -> None:
    assert "owes" in rollcall("scorings", "--help", cwd=tmp_path).stdout
    assert refused(rollcall("scorings", "retire", "x", cwd=tmp_path))
