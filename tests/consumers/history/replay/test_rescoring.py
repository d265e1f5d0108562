"""`rollcall rescore`: new rewards, their agreement with old ones, failing scorers."""

import asyncio
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollcall.compose.cli.range_options import parse
from rollcall.compose.cli.rescore import print_rescoring
from rollcall.compose.settings import RewardsSettings, Settings
from rollcall.compose.workers.rescorer import Rescorer
from rollcall.consumers.history.reading.ranges import Range
from rollcall.consumers.history.reading.selection import Selection
from rollcall.consumers.history.replay.rescoring import Rescoring
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import ScoredTrajectory, Trajectory
from tests.support.memory_cluster import MemoryCluster
from tests.support.recorded_run import SCORED, page, recorded, scored
from tests.support.rig import PREFIX

HERE = __name__


def on_third(trajectory: Trajectory) -> float:
    """Cannot judge the third rollout."""
    if trajectory.rollout_id == "r3":
        msg = "no idea"
        raise ValueError(msg)
    return sum(step.reward for step in trajectory.steps or ())


def halved(trajectory: Trajectory) -> float:
    return 0.5 * sum(step.reward for step in trajectory.steps or ())


async def in_its_room(trajectory: Trajectory) -> float:
    """As `on_third`, and waits."""
    await asyncio.sleep(0)
    return on_third(trajectory)


@pytest.fixture
def cluster() -> MemoryCluster:
    return recorded()


def judged(
    cluster: MemoryCluster, scorers: list[str], span: Range | None = None, **options: Any
) -> Rescoring:
    rescorer = Rescorer(scorers, **options)
    return rescorer.rescore(cluster, Selection(cluster, span or Range()))  # type: ignore[arg-type]


def test_the_same_scorer_gives_the_same_rewards_exactly(cluster: MemoryCluster) -> None:
    found = judged(cluster, ["environment_return"])

    old, new = scored(cluster, "default"), scored(cluster, found.scoring_id)
    assert found.scoring_id == "rescore-environment_return"
    assert new == {
        rollout_id: replace(each, scoring_id=found.scoring_id) for rollout_id, each in old.items()
    }
    [agreement] = found.agreements
    assert (agreement.scoring_id, agreement.compared, agreement.agree) == ("default", 8, 8)


def test_rescored_records_equal_those_of_the_rewards_group(
    cluster: MemoryCluster,
) -> None:
    judged(cluster, ["environment_return"], scoring_id="again")

    def bare(record: object) -> tuple[object, ...]:
        named = [(k, v) for k, v in record.headers if k not in ("ce_id", "ce_source", "ce_time")]  # type: ignore[attr-defined]
        return record.key, record.partition, tuple(named)  # type: ignore[attr-defined]

    records = cluster.log.all(SCORED)
    by_id = {
        scoring_id: Counter(
            bare(record)
            for record in records
            if cluster.codec.decode(record.value, ScoredTrajectory).scoring_id == scoring_id
        )
        for scoring_id in ("default", "again")
    }
    assert by_id["default"] == by_id["again"]


def test_a_scorer_that_raises_costs_one_trajectory_its_reward(cluster: MemoryCluster) -> None:
    found = judged(cluster, [f"{HERE}:on_third"])

    assert (found.trajectories, found.rewarded, found.failed) == (8, 7, 1)
    [failed] = found.first_failed
    assert (failed.rollout_id, "ValueError: no idea" in failed.reason) == ("r3", True)
    assert scored(cluster, found.scoring_id)["r3"].total is None
    [agreement] = found.agreements
    assert (agreement.agree, agreement.only_old) == (7, 1)
    said = page(lambda terminal: print_rescoring(found, terminal))
    assert "1 got no reward from the scorer:" in said
    assert "no idea" in said


def test_an_async_scorer_gives_the_same_rewards(cluster: MemoryCluster) -> None:
    plain = judged(cluster, [f"{HERE}:on_third"])
    found = judged(cluster, [f"{HERE}:in_its_room"])

    assert (found.trajectories, found.rewarded, found.failed) == (8, 7, 1)
    assert found.totals == plain.totals
    assert "ValueError: no idea" in found.first_failed[0].reason
    assert scored(cluster, found.scoring_id).keys() == scored(cluster, plain.scoring_id).keys()
    assert not [each for each in threading.enumerate() if each.name == "event-loop"]


def test_flipped_rewards_are_counted_and_named(cluster: MemoryCluster) -> None:
    found = judged(cluster, [f"{HERE}:halved"], dry_run=True)

    [agreement] = found.agreements
    assert (agreement.agree, agreement.fail_now, agreement.succeed_now) == (4, 4, 0)
    assert agreement.mean_difference == pytest.approx(-0.25)
    assert {flip.rollout_id for flip in agreement.flips} == {"r0", "r1", "r4", "r5"}
    assert scored(cluster, found.scoring_id) == {}
    assert found.plain()["agreements"][0]["mean_difference"] == pytest.approx(-0.25)


def test_rescoring_twice_is_harmless_and_reported(cluster: MemoryCluster) -> None:
    once = judged(cluster, ["environment_return"], scoring_id="s")
    before = scored(cluster, "s")
    twice = judged(cluster, [f"{HERE}:halved"], scoring_id="s")

    assert [each.scoring_id for each in once.agreements] == ["default"]
    assert [each.scoring_id for each in twice.agreements] == ["default", "s"]
    assert scored(cluster, "s") == before
    said = page(lambda terminal: print_rescoring(twice, terminal))
    assert "s was there before: its first rewards are those that count" in said


def test_rewards_are_written_to_a_complete_parquet_file(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    directory, before = tmp_path / "out", len(cluster.log.all(SCORED))

    judged(cluster, [f"{HERE}:on_third"], parse(run="run"), parquet=directory)

    assert [path.name for path in directory.iterdir()] == ["rewards.parquet"]
    read = {row["rollout_id"]: row for row in pq.read_table(directory).to_pylist()}
    assert len(cluster.log.all(SCORED)) == before
    assert (read["r0"]["total"], read["r2"]["total"], read["r3"]["total"]) == (1.0, 0.0, None)
    assert "no idea" in read["r3"]["reason"]
    assert read["r0"]["rewards"][0]["scorer"] == f"{HERE}:on_third"
    with pytest.raises(Refused, match="not empty"):
        judged(cluster, ["environment_return"], parquet=directory)


@pytest.mark.parametrize(
    ("scorers", "options", "says"),
    [
        (["environment_retrn"], {}, "did you mean 'environment_return'"),
        (["environment_return*heavy"], {}, "the weight 'heavy' is no number"),
        (["environment_return"], {"scoring_id": "a b"}, "scoring id 'a b'"),
        (["environment_return"], {"dry_run": True, "parquet": Path("x")}, "without --parquet"),
    ],
)
def test_an_impossible_rescoring_is_refused_before_any_write(
    cluster: MemoryCluster, scorers: list[str], options: dict[str, object], says: str
) -> None:
    before = len(cluster.log.all(SCORED))

    with pytest.raises(Refused, match=says):
        judged(cluster, scorers, **options)

    assert len(cluster.log.all(SCORED)) == before


def never_comes_back(trajectory: Trajectory) -> float:
    """Hangs over the third rollout."""
    while trajectory.rollout_id == "r3":
        pass
    return 1.0


def test_a_stuck_scorer_is_ended_and_the_others_are_rewarded(
    cluster: MemoryCluster,
) -> None:
    cluster.settings = Settings(prefix=PREFIX, rewards=RewardsSettings(scorer_timeout_s=0.2))

    found = judged(cluster, [f"{HERE}:never_comes_back"])

    assert (found.rewarded, found.failed) == (7, 1)
    assert "the scorer did not come back within 0.2 s" in found.first_failed[0].reason
