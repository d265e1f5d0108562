"""Draws that curators choose are seeded, recorded on the log and never delayed for ever."""

from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.producers.admission import Draws
from rollcall.producers.curators.curator import Curator, Outcome
from rollcall.producers.curators.curators import curators_of
from rollcall.producers.curators.curriculum import FORCE_AFTER, Curriculum, OutcomeFold
from rollcall.producers.curators.greso import Greso
from rollcall.schemas.messages import RolloutRequest, ScoredTrajectory, Task
from tests.support.scored_trajectories import scored

TEMPLATE = RolloutRequest("", Task(), policy_id="policy", run_id="run", purpose="train")
DRAWS = Draws(TEMPLATE, 3, 4, (0, 10))
SUITE = replace(DRAWS, seed_range=(0, 1_000_000), tasks=tuple(Task(task_id=f"t{n}") for n in "abc"))


class Refusing(Curator):
    """Refuses tasks by number, and records the tasks it was asked about."""

    def __init__(self, refused: Iterable[int]) -> None:
        self.refused = set(refused)
        self.asked: list[tuple[int, float]] = []

    def admit(self, task: int, version: int, random: Random) -> bool:
        self.asked.append((task, random.random()))
        return task not in self.refused


def ended(request: RolloutRequest, reward: float | None, version: int = 0) -> ScoredTrajectory:
    record = scored(request.rollout_id, reward, version=version)
    return replace(record, trajectory=replace(record.trajectory, request=request))


def curriculum(curator: Curator | None, draws: Draws = DRAWS) -> Curriculum:
    return Curriculum(draws, (curator,) if curator else (), "scoring")


def test_a_curator_that_refuses_nothing_does_not_change_draws() -> None:
    plain, lenient = curriculum(None), curriculum(Curator())

    for draw in range(20):
        assert plain.next_group(draw) == DRAWS.group(draw) == lenient.next_group(draw, 7)


def test_a_refused_task_is_replaced_by_the_next_seeded_draw() -> None:
    seed = DRAWS.group(0)[0].task.seed
    first, second = Refusing([seed]), Refusing([seed])

    group = curriculum(first).next_group(0)

    assert curriculum(second).next_group(0) == group
    assert first.asked == second.asked
    others = [DRAWS.seed(0, refusals) for refusals in range(FORCE_AFTER)]
    expected = next(other for other in others if other != seed)
    assert {request.task.seed for request in group} == {expected}
    assert [request.rollout_id for request in group] == [r.rollout_id for r in DRAWS.group(0)]


def test_one_task_is_forced_after_256_consecutive_refusals() -> None:
    curator = Refusing(range(10))
    run = curriculum(curator)

    group = run.next_group(0)

    assert len(group) == 4
    assert (len(curator.asked), run.refused, run.forced) == (FORCE_AFTER, FORCE_AFTER, 1)


def test_draws_on_the_log_are_reused() -> None:
    drawn = DRAWS.request(0, 9)
    run = curriculum(Refusing([9]))
    run.knows({0: replace(drawn, group_size=2, rollout_id="any")})
    run.knows({1: replace(drawn, group_size=2**30)})

    group = run.next_group(0)

    assert [(r.task.seed, r.group_size) for r in group] == [(9, 2)] * 2
    assert len(run.next_group(1)) == 4


def test_the_smallest_group_size_and_turn_limit_of_all_curators_apply() -> None:
    run = Curriculum(DRAWS, curators_of(["adaptive_rollouts", "length_cap"], 10), "scoring")
    seeds = [run.next_group(draw)[0].task.seed for draw in range(40)]
    for draw in range(40):
        for request in run.group(draw):
            record = ended(request, 1.0)
            run.hear(replace(record, trajectory=replace(record.trajectory, model_calls=3)))

    group = run.next_group(40)

    assert group[0].task.seed in seeds
    assert [(r.group_size, r.limits.max_turns) for r in group] == [(2, 3)] * 2


def test_seeds_of_one_task_share_its_statistics() -> None:
    (curator,) = curators_of({"name": "filter_solved", "keep": 0.5}, SUITE.task_count())
    run = curriculum(curator, SUITE)
    for draw in range(40):
        for request in run.next_group(draw):
            run.hear(ended(request, float("t0" in request.task.task_id or 1.0)))

    assert SUITE.task_count() == 3
    assert set(curator.q) == {0, 1, 2}  # type: ignore[attr-defined]
    assert run.refused > 0


RECORDS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 3), st.sampled_from([None, 0.0, 1.0])),
    max_size=40,
)


@given(RECORDS, st.randoms(use_true_random=False), st.integers(0, 40))
def test_outcomes_do_not_depend_on_partition_order_or_redelivery(
    records: list[tuple[int, int, float | None]], random: Random, cut: int
) -> None:
    # Each draw's records keep their order: a group lies in one partition.
    told = [ended(DRAWS.group(draw)[member], reward) for draw, member, reward in records]
    others = [
        [r for r, (draw, *_) in zip(told, records, strict=True) if draw == d] for d in range(6)
    ]
    shuffled = []
    while any(others):
        shuffled.append(random.choice([each for each in others if each]).pop(0))

    in_order, mixed = fresh(), fresh()
    for record in told:
        in_order.take(record)
    for record in [*shuffled[:cut], *shuffled[:cut], *shuffled]:
        mixed.take(record)
    for each in (in_order, mixed):
        each.settle(6)

    assert list(in_order.ready()) == list(mixed.ready())


def fresh() -> OutcomeFold:
    return OutcomeFold("run", "policy", "scoring", 4)


def test_an_outcome_waits_for_earlier_draws_unless_they_are_settled() -> None:
    outcomes = fresh()
    for request in DRAWS.group(1):
        outcomes.take(ended(request, 1.0, version=3))
    early = list(outcomes.ready())
    outcomes.settle(1)

    assert early == []
    assert list(outcomes.ready()) == [
        (DRAWS.seed(1), Outcome(1, DRAWS.seed(1), (1.0,) * 4, (1,) * 4, 3))
    ]
    assert outcomes.next_draw == 2


@pytest.mark.parametrize(
    "change",
    [{"run_id": "other"}, {"purpose": "evaluate"}, {"group_id": "g"}, {"group_id": "run/7"}],
)
def test_records_of_other_runs_are_ignored(change: dict[str, str]) -> None:
    outcomes = fresh()
    for request in DRAWS.group(0):
        outcomes.take(ended(replace(request, **change), 1.0))  # type: ignore[arg-type]
        outcomes.take(replace(ended(request, 1.0), scoring_id="other"))

    assert list(outcomes.ready()) == []


def test_a_curator_sees_newer_versions_before_their_outcomes() -> None:
    curator = Greso(1)
    run = curriculum(curator)
    for draw, version in enumerate([0, 2, 1, 3]):
        for request in run.next_group(draw):
            run.hear(ended(request, 1.0, version=version))

    assert curator.seen == 4
    assert curator.window == 1
    assert curator.easy == pytest.approx(0.48)
