"""`rollcall eval`: evaluation of recorded and of live rollouts."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from rollcall.compose.cli.evaluate import print_evaluation
from rollcall.compose.conductor.live_evaluation import LiveEvaluation, tasks_of
from rollcall.compose.request_checks import RequestChecks
from rollcall.compose.runs.recipe import load_recipe
from rollcall.compose.submission import NotScored
from rollcall.compose.workers.rescorer import Rescorer
from rollcall.consumers.history.reading.ranges import Range
from rollcall.consumers.history.reading.selection import Selection
from rollcall.consumers.history.rollouts.phase_quantiles import PhaseTimes
from rollcall.consumers.history.versions.evaluation import Bootstrap, Evaluation, evaluate
from rollcall.consumers.history.versions.version_results import VersionResult, results_of
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import (
    PolicyVersion,
    RolloutRequest,
    ScoredTrajectory,
    Task,
    Trajectory,
    WeightsFile,
)
from rollcall.trainer.config.curation import Curation
from rollcall.trainer.curation.judge import OUTSIDE, judge
from tests.support.memory_cluster import CORRIDOR, POLICY, MemoryCluster
from tests.support.recorded_run import page, recorded, scored
from tests.support.scored_trajectories import sequence
from tests.support.tiny_run import World

REQUESTS = "t.rollout.requests"


@pytest.fixture
def cluster() -> MemoryCluster:
    return recorded()


def offline(cluster: MemoryCluster, span: Range | None = None) -> Evaluation:
    return evaluate(Selection(cluster, span or Range()), "evaluate", 1.0)


def rows(found: Evaluation, scoring_id: str = "", **options: Any) -> list[VersionResult]:
    return results_of(found.scored_by(scoring_id), Bootstrap(50), **options)[0]


def test_recorded_rollouts_are_evaluated_without_running_any(
    cluster: MemoryCluster,
) -> None:
    before = {name: cluster.log.bounds(name) for name in cluster.log.topic_names()}

    [row] = rows(offline(cluster))

    assert (row.policy_id, row.version, row.tasks, row.rollouts) == (POLICY, 0, 4, 8)
    assert row.pass_at == {1: 0.5, 2: 0.5}
    assert (row.success.value, row.reward and row.reward.value) == (0.5, 0.5)
    assert {name: cluster.log.bounds(name) for name in cluster.log.topic_names()} == before


def test_a_rollout_counts_only_for_the_single_version_that_sampled_it(
    cluster: MemoryCluster,
) -> None:
    found = offline(cluster)
    template = next(iter(scored(cluster, "default").values()))
    asked = RolloutRequest("late", Task(CORRIDOR, seed=0), policy_id=POLICY, min_policy_version=3)
    for name, versions in (("late", (4, 4)), ("mixed", (3, 4)), ("again", (4, 5))):
        tokens = sequence([0, 1, 2], [0, 1, 1], versions=[-1, *versions])
        ours = replace(
            template.trajectory, request=replace(asked, rollout_id=name), rollout_id=name,
            sequences=(tokens,), policies=(POLICY,),
        )  # fmt: skip
        found.take(replace(template, trajectory=ours))

    first, fourth = rows(found)

    assert (first.version, first.mixed) == (0, 0)
    assert (fourth.version, fourth.rollouts, fourth.mixed) == (4, 1, 1)
    [only] = rows(found, only=(POLICY, 4))
    assert only.version == 4
    with pytest.raises(Refused, match="all 1 rollouts of p@3"):
        rows(found, only=(POLICY, 3))
    with pytest.raises(Refused, match=r"p@7.*p@0, p@3, p@4"):
        rows(found, only=(POLICY, 7))


def test_two_versions_are_compared_on_their_common_tasks() -> None:
    found = Evaluation()
    for version, totals in ((1, (0.0, 1.0, 0.0)), (2, (1.0, 1.0, 1.0, 0.0))):
        for seed, total in enumerate(totals):
            found.take(made(f"{version}-{seed}", seed, total, version))

    results, difference = results_of(found.scored_by(), Bootstrap(100), compare=("1", "p@2"))

    assert difference is not None
    assert (difference.tasks, difference.only_first, difference.only_second) == (3, 0, 1)
    assert difference.success.value == pytest.approx(2 / 3)
    said = page(
        lambda terminal: print_evaluation(results, difference, terminal, phases=PhaseTimes())
    )
    assert "p@2 less p@1, on the 3 tasks that both were given" in said
    with pytest.raises(Refused, match="no rollouts of p@9"):
        rows(found, compare=("1", "9"))
    with pytest.raises(Refused, match="names no version"):
        rows(found, compare=("1", "new"))


def made(rollout_id: str, seed: int, total: float | None, version: int = 0) -> ScoredTrajectory:
    task = Task("gymnasium", '{"id": "Lake"}', seed)
    request = RolloutRequest(rollout_id, task, policy_id="p", min_policy_version=version)
    trajectory = Trajectory(
        rollout_id, 1, "finished", request, (), (), (), 0, 0, 0, 0, 0, 0, 0, 0
    )  # fmt: skip
    return ScoredTrajectory("s", trajectory, (), total, "t", 0, 0)


def test_task_families_have_their_own_lines_and_a_total() -> None:
    found = Evaluation()
    found.take(made("a", 0, 1.0))
    other = made("b", 1, 0.0)
    request = replace(other.trajectory.request, task=Task(prompt="why"), agent="single_turn")  # type: ignore[type-var]
    found.take(replace(other, trajectory=replace(other.trajectory, request=request)))

    read = {row.family: row.success and row.success.value for row in rows(found)}

    assert read == {"gymnasium Lake": 1.0, "single_turn": 0.0, "all": 0.5}


def test_a_rollout_without_a_reward_fails_and_is_not_in_the_mean() -> None:
    found = Evaluation()
    for number, total in enumerate((1.0, None)):
        found.take(made(f"r{number}", number, total))

    [row] = rows(found)

    assert row.success is not None
    assert (row.success.value, row.without_reward) == (0.5, 1)
    assert row.reward is not None
    assert row.reward.value == 1.0
    assert "1 rollouts have no reward" in page(
        lambda terminal: print_evaluation([row], None, terminal, phases=PhaseTimes())
    )


def test_a_version_without_any_reward_is_not_measured() -> None:
    found = Evaluation()
    for number in range(3):
        found.take(made(f"r{number}", number, None))
        found.take(made(f"s{number}", number, 1.0, version=1))

    row, other = rows(found)

    assert (row.success, row.pass_at, row.reward) == (None, {}, None)
    assert other.success is not None
    said = page(
        lambda terminal: print_evaluation([row, other], None, terminal, phases=PhaseTimes())
    )
    assert "not measured: 3 of 3 failed, none has a reward" in said
    with pytest.raises(Refused, match=r"was not measured: none of its 3 rollouts has a reward"):
        rows(found, compare=("0", "1"))


def test_too_few_rollouts_for_pass_at_k_are_reported(cluster: MemoryCluster) -> None:
    with pytest.raises(Refused, match=r"pass@3.* 3 .* 2$"):
        rows(offline(cluster), ks=[3])
    found = Evaluation()
    for number, seed in enumerate((0, 0, 1)):
        found.take(made(f"r{number}", seed, 1.0))
    [row] = rows(found, ks=[2])
    assert (row.pass_at, row.too_few) == ({1: 1.0, 2: 1.0}, {2: 1})


def test_one_of_several_scorings_must_be_named(cluster: MemoryCluster) -> None:
    rescorer = Rescorer(["environment_return*0.5"], "half")
    rescorer.rescore(cluster, Selection(cluster, Range()))  # type: ignore[arg-type]
    found = offline(cluster)

    with pytest.raises(Refused, match="default, half"):
        rows(found)
    with pytest.raises(Refused, match="did you mean 'half'"):
        rows(found, scoring_id="halb")
    assert rows(found, scoring_id="half")[0].success.value == 0.0


def test_an_unknown_purpose_is_refused(cluster: MemoryCluster) -> None:
    found = evaluate(Selection(cluster, Range()), "train", 1.0)

    with pytest.raises(Refused, match="'train' among the 8"):
        rows(found)


def live(cluster: MemoryCluster, tasks: str, **options: Any) -> tuple[str, Evaluation]:
    return evaluation_of(tasks, **options).run(cluster, POLICY)  # type: ignore[arg-type]


def evaluation_of(tasks: str | Path, n: int = 2, **options: Any) -> LiveEvaluation:
    return LiveEvaluation(str(tasks), n, 0, "", 1.0, 30.0, **options)


def test_a_live_evaluation_equals_the_evaluation_of_its_record(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    task = {"environment": CORRIDOR, "seed": 5}
    lines = [{"task": task}, {"task": {**task, "system": "odd"}, "rollout_id": "named"}]
    (tmp_path / "tasks.jsonl").write_bytes(b"\n".join(map(orjson.dumps, lines)))

    run_id, found = live(cluster, str(tmp_path / "tasks.jsonl"), n=3)

    [row] = rows(found)
    assert (row.tasks, row.rollouts, row.pass_at) == (2, 6, {1: 0.5, 2: 0.5})
    assert rows(offline(cluster, Range(run_id=run_id))) == [row]


def test_an_older_version_is_evaluated_by_exactly_its_weights(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    (tmp_path / "tasks.jsonl").write_bytes(orjson.dumps({"task": {"environment": CORRIDOR}}))
    weights = WeightsFile("file:///nowhere", "", 0, "", 0)
    topic = cluster.topics.versions
    for number in (2, 3):
        word = PolicyVersion(POLICY, number, -1, "run", 0, "", weights, bytes(4), b"")
        cluster.log.append(topic, POLICY.encode(), cluster.codec.encode(topic, word))
    cluster.log.append(topic, POLICY.encode(), b"garbage")

    _, asked = evaluation_of(tmp_path / "tasks.jsonl").run(cluster, f"{POLICY}@2")  # type: ignore[arg-type]

    [row] = rows(asked)
    assert (row.version, row.rollouts, row.mixed) == (2, 2, 0)
    with pytest.raises(Refused, match="version 1 of 'p'"):
        evaluation_of(tmp_path / "tasks.jsonl").run(cluster, f"{POLICY}@1")  # type: ignore[arg-type]


def test_trainers_ignore_live_evaluation_rollouts(cluster: MemoryCluster, tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_bytes(orjson.dumps({"task": {"environment": CORRIDOR}}))

    run_id, _ = live(cluster, str(tmp_path / "tasks.jsonl"))

    own = [each for each in scored(cluster, "default").values() if each.trajectory.request]
    ours = [each for each in own if each.trajectory.request.run_id == run_id]  # type: ignore[union-attr]
    assert len(ours) == 2
    for run in ("run", run_id):
        reasons = {judge(each, 0, 0, Curation(run, POLICY)).reason for each in ours}
        assert reasons <= OUTSIDE


def test_an_evaluation_that_no_worker_begins_is_reported_early(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    (tmp_path / "tasks.jsonl").write_bytes(orjson.dumps({"task": {"environment": CORRIDOR}}))
    cluster.log.crew = []

    with pytest.raises(NotScored, match="none of 2 "):
        live(cluster, str(tmp_path / "tasks.jsonl"), begin_within_s=0.0)


@pytest.mark.parametrize(
    ("policy", "tasks", "says"),
    [
        (POLICY, "lake", "neither a file nor a recipe"),
        (f"{POLICY}@4", "lake-any-start", "version 4 of 'p' was never announced; none was"),
        ("q", "lake-any-start", "policy 'q' has no topic"),
    ],
)
def test_an_impossible_live_evaluation_is_refused_before_any_request(
    cluster: MemoryCluster, policy: str, tasks: str, says: str
) -> None:
    before = cluster.log.bounds(REQUESTS)

    with pytest.raises(Refused, match=says):
        evaluation_of(tasks, n=1).run(cluster, policy)  # type: ignore[arg-type]

    assert cluster.log.bounds(REQUESTS) == before


def test_a_recipe_is_evaluated_greedily_once_or_with_its_own_sampling(
    cluster: MemoryCluster,
) -> None:
    recipe, _ = load_recipe("lake-any-start")
    asked = {n: list(tasks_of("lake-any-start", POLICY, n, RequestChecks(cluster))) for n in (1, 4)}

    first, end = recipe.evaluation.seeds
    assert [each.task.seed for each in asked[1]] == list(range(first, end))
    assert {each.sampling.temperature for each in asked[1]} == {0.0}
    assert {each.sampling.temperature for each in asked[4]} == {recipe.sampling.temperature}


def test_the_record_of_a_run_reproduces_its_held_out_figures(tmp_path: Path) -> None:
    run = World(tmp_path)
    trainer = run.trainer()
    run.train(trainer)
    cluster = SimpleNamespace(log=run.log, codec=run.factory.codec, topics=run.topics)

    found = evaluate(Selection(cluster, Range(run_id=run.folder.run_id)), "evaluate", 1.0)

    assert trainer.evaluations.heldout is not None
    noted = trainer.evaluations.heldout.curve()
    assert [(row.version, row.success.value) for row in rows(found)] == noted
    assert len(noted) == 3
