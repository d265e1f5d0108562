"""The start offset of a new scoring, the rollouts it scores and the ones it skips."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rollcall.consumers.history.replay.scorings import begin_scoring
from rollcall.schemas.messages import RolloutRequest, ScoredTrajectory, Task
from tests.support.memory_cluster import CORRIDOR, POLICY, MemoryCluster
from tests.support.whole_log import audited


def request(rollout_id: str, *scorings: str) -> RolloutRequest:
    task = Task(CORRIDOR, seed=1)
    return replace(RolloutRequest(rollout_id, task, policy_id=POLICY), scorings=scorings)


def hire(cluster: MemoryCluster, scoring_id: str) -> None:
    """Replace the workers by new ones with a rewards worker for this scoring."""
    for worker in cluster.log.crew:
        worker.stop()
    rewards = cluster.settings.rewards.model_copy(update={"scoring_id": scoring_id})
    cluster.settings = cluster.settings.model_copy(update={"rewards": rewards})
    cluster.hire(lambda call: "left")


def scored_by(cluster: MemoryCluster) -> list[tuple[str, str]]:
    """The rollouts that were scored, each with the scoring, sorted."""
    found = cluster.read(cluster.topics.scored, ScoredTrajectory)
    return sorted((each.trajectory.rollout_id, each.scoring_id) for each in found)


def test_a_scoring_skips_rollouts_that_name_another() -> None:
    cluster = MemoryCluster()
    hire(cluster, "mine")
    cluster.ask(request("a", "mine"))
    cluster.ask(request("b", "yours"))
    cluster.ask(request("c"))
    cluster.finish()

    assert scored_by(cluster) == [("a", "mine"), ("c", "mine")]
    assert audited(cluster, drained=False).ok


def test_a_new_scoring_skips_trajectories_that_another_has_scored() -> None:
    cluster = MemoryCluster()
    hire(cluster, "first")
    for number in range(4):
        cluster.ask(request(f"old-{number}"))
    cluster.finish()

    hire(cluster, "second")
    cluster.ask(request("new"))
    cluster.finish()

    by_second = [rollout for rollout, scoring in scored_by(cluster) if scoring == "second"]
    assert by_second == ["new"]
    assert audited(cluster).ok


def test_a_new_scoring_starts_at_the_first_rollout_that_names_it() -> None:
    cluster = MemoryCluster()
    hire(cluster, "first")
    cluster.ask(request("both", "first", "second"))
    cluster.ask(request("one", "first"))
    cluster.finish()
    assert [b.text for b in audited(cluster).breaches] == [
        "this trajectory has no scored record of 'second'"
    ]

    hire(cluster, "second")
    cluster.finish()

    assert scored_by(cluster) == [("both", "first"), ("both", "second"), ("one", "first")]
    assert audited(cluster).ok


def test_a_scoring_tried_once_owes_nothing_to_later_rollouts() -> None:
    cluster = MemoryCluster()
    hire(cluster, "tried")
    hire(cluster, "mine")
    cluster.ask(request("later"))
    cluster.finish()

    assert scored_by(cluster) == [("later", "mine")]
    assert audited(cluster).ok


def test_the_very_first_scoring_also_scores_earlier_rollouts() -> None:
    cluster = MemoryCluster()
    hire(cluster, "first")
    cluster.log.crew, (rewards,) = cluster.log.crew[:3], cluster.log.crew[3:]
    rewards.stop()
    cluster.log.groups.pop("t.rewards.first")
    cluster.ask(request("early"))
    cluster.finish()
    assert scored_by(cluster) == []

    hire(cluster, "late")
    cluster.finish()

    assert scored_by(cluster) == [("early", "late")]


def test_existing_commits_of_a_group_are_kept() -> None:
    cluster = MemoryCluster()
    hire(cluster, "mine")
    cluster.ask(request("a"))
    cluster.finish()
    for worker in cluster.log.crew:
        worker.stop()
    before = cluster.log.commits("t.rewards.mine", cluster.topics.trajectories)

    begin_scoring(cluster.log, cluster.codec, cluster.topics, "mine")

    assert cluster.log.commits("t.rewards.mine", cluster.topics.trajectories) == before


NAMES = st.sets(st.sampled_from(["x", "y", "z"])).map(sorted)


@given(
    st.lists(st.tuples(st.sampled_from(["x", "y", "z"]), st.lists(NAMES, max_size=3)), max_size=4)
)
def test_every_owed_score_is_written_and_no_other_in_any_shifts(
    shifts: list[tuple[str, list[list[str]]]],
) -> None:
    cluster, asked = MemoryCluster(), []
    for number, (scoring_id, requests) in enumerate(shifts):
        hire(cluster, scoring_id)
        for member, names in enumerate(requests):
            asked.append((f"r{number}-{member}", set(names)))
            cluster.ask(request(asked[-1][0], *names))
        cluster.finish()
    for last in ("x", "y", "z"):
        hire(cluster, last)
        cluster.finish()

    found = scored_by(cluster)
    assert len(found) == len(set(found))
    for rollout_id, names in asked:
        by = {scoring for rollout, scoring in found if rollout == rollout_id}
        assert by == names if names else by
    assert audited(cluster).ok
