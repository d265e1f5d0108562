"""The numerical decisions of each curator.

Golden values: the design's page on algorithms, section 6.
"""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.producers.curators.curator import Curator, Outcome
from rollcall.producers.curators.curators import (
    CURATORS,
    AdaptiveRollouts,
    LengthCap,
    LengthCapOptions,
    curators_of,
    rollouts_at,
)
from rollcall.producers.curators.greso import Greso, GresoOptions
from rollcall.producers.curators.task_choice import (
    FilterSolved,
    Paced,
    PacedOptions,
    PassRate,
    PassRateOptions,
    paced_weight,
)
from rollcall.schemas.errors import Refused
from tests.support.golden import golden

TASK = 3


def told(curator: Curator, *groups: Sequence[float], task: int = TASK) -> None:
    """Give the curator groups of one task with each member's reward, over one turn each."""
    for draw, rewards in enumerate(groups):
        curator.update(Outcome(draw, task, tuple(rewards), (1,) * len(rewards)))


def admits(curator: Curator, task: int = TASK) -> bool:
    return curator.admit(task, 0, Random(1))


@golden("curator", "filter_solved")
def test_a_solved_task_is_dropped_after_29_groups() -> None:
    curator = FilterSolved()
    told(curator, *[[1.0] * 8] * 28)
    after_28 = curator.q[TASK], admits(curator)
    told(curator, [1.0] * 8)

    assert after_28 == (pytest.approx(0.947665, abs=5e-7), True)
    assert curator.q[TASK] == pytest.approx(0.952899, abs=5e-7)
    assert not admits(curator)
    assert admits(curator, task=4)


@pytest.mark.parametrize(
    ("reward", "chances"),
    [(1.0, [1, 0.5, 0.25, 0.125, 0.10]), (0.0, [1, 0.5, 0.4, 0.4, 0.4])],
)
def test_a_task_with_equal_rewards_is_drawn_less_with_each_group(
    reward: float, chances: list[float]
) -> None:
    curator, seen = Greso(100), []
    for _ in range(5):
        seen.append(curator.chance(TASK))
        told(curator, [reward] * 4)

    assert seen == pytest.approx(chances, abs=1e-12)


@golden("curator", "greso")
def test_mixed_rewards_reset_the_chance_and_a_flip_halves_it() -> None:
    curator = Greso(100)
    told(curator, [1.0, 1.0], [1.0, 1.0], [0.0, 0.0])
    flipped = curator.chance(TASK)
    told(curator, [0.0, 1.0])

    assert flipped == 0.5
    assert curator.chance(TASK) == 1.0


def test_the_probabilities_move_once_per_version_after_an_epoch() -> None:
    curator = Greso(4)
    told(curator, [1.0, 1.0], [0.0, 1.0])
    curator.on_version(1)
    early = curator.easy, curator.hard
    told(curator, [1.0, 1.0], [0.0, 1.0])
    curator.on_version(2)
    moved = curator.easy, curator.hard
    curator.on_version(3)

    assert early == (0.5, 0.5)
    assert moved == pytest.approx((0.49, 0.51))
    assert (curator.easy, curator.hard) == moved


def test_the_probabilities_stay_within_their_bounds() -> None:
    curator = Greso(1, GresoOptions(easy=0.01, hard=0.99))
    told(curator, [1.0, 1.0])
    curator.on_version(1)

    assert (curator.easy, curator.hard) == (0.01, 0.99)


@golden("curator", "paced")
def test_a_task_is_weighted_by_its_learnability() -> None:
    rates = [0.1, 0.25, 0.5, 0.75, 0.9]

    weights = [paced_weight(p, PacedOptions()) for p in rates]
    shares = [each / sum(weights) for each in weights]

    assert weights == pytest.approx([0.09, 0.1875, 0.25, 0.1875, 0.09], abs=1e-12)
    assert shares[:3] == pytest.approx([0.111801, 0.232919, 0.310559], abs=5e-7)


def test_tasks_are_drawn_in_proportion_to_their_weights() -> None:
    curator = Paced(PacedOptions(keep=1.0))
    told(curator, [1.0] * 8, task=0)
    told(curator, [1.0, 0.0] * 4, task=1)
    random, drawn = Random(5), [0, 0]
    for _ in range(4000):
        task = random.randrange(2)
        drawn[task] += curator.admit(task, 0, random)

    assert curator.chance(0) == pytest.approx((0.9 * 0.1) / 0.25)
    assert curator.chance(2) == 1.0
    assert drawn[0] / drawn[1] == pytest.approx(0.36, abs=0.05)


@pytest.mark.parametrize(
    ("p", "members"), [(0.0, 8), (0.6, 8), (0.7, 6), (0.8, 4), (0.9, 2), (1, 2)]
)
def test_a_group_shrinks_as_its_task_succeeds(p: float, members: int) -> None:
    assert rollouts_at(p, 8) == members


@golden("curator", "adaptive_rollouts")
def test_the_group_size_follows_the_scored_rewards() -> None:
    curator = AdaptiveRollouts()
    before = curator.rollouts(TASK, 8)
    told(curator, [1.0] * 8 + [0.0] * 2)

    assert (before, curator.rollouts(TASK, 8)) == (8, 4)
    assert curator.rollouts(TASK + 1, 4) == 4


@golden("curator", "length_cap")
def test_turns_are_capped_by_the_longest_success() -> None:
    curator = LengthCap()
    curator.update(Outcome(0, TASK, (1.0, 0.0, 1.0), (4, 30, 7)))

    assert curator.turns(TASK, 64) == 7
    assert curator.turns(TASK, 5) == 5
    assert curator.turns(TASK + 1, 64) == 50
    assert LengthCap(LengthCapOptions(most=9)).turns(0, 64) == 9


@golden("curator", "pass_rate")
def test_only_tasks_that_sometimes_succeed_are_kept() -> None:
    curator = PassRate(PassRateOptions(measure=4))
    told(curator, [1.0, 0.0], task=0)
    told(curator, [1.0] * 4, task=1)
    told(curator, [0.0] * 4, task=2)
    told(curator, [0.0, 0.0, 0.0, 1.0], [0.0] * 4, task=3)

    assert [admits(curator, task) for task in range(5)] == [True, False, False, True, True]


def test_a_task_is_measured_again_after_the_configured_versions() -> None:
    curator = PassRate(PassRateOptions(measure=2, again_after=3))
    curator.on_version(1)
    told(curator, [0.0, 0.0])
    curator.on_version(3)
    refused = admits(curator)
    curator.on_version(4)
    again = admits(curator)
    told(curator, [1.0, 0.0])

    assert (refused, again, admits(curator)) == (False, True, True)


RULES = [name for name in CURATORS if name != "accept_all"]
GROUPS = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.lists(st.sampled_from([0.0, 0.5, 1.0]), max_size=4),
        st.integers(-1, 5),
    ),
    max_size=30,
)


@given(st.sampled_from(RULES), GROUPS, st.integers(0, 2**32))
def test_a_curator_depends_on_outcomes_alone_and_stays_within_bounds(
    name: str, groups: list[tuple[int, list[float], int]], seed: int
) -> None:
    (first,), (second,) = curators_of(name, 6), curators_of(name, 6)
    for curator in (first, second):
        for draw, (task, rewards, version) in enumerate(groups):
            if version >= 0:
                curator.on_version(version)
            curator.update(Outcome(draw, task, tuple(rewards), (3,) * len(rewards), version))
            if curator is first:  # what is asked changes nothing
                curator.admit(task, version, Random(seed))

    assert first == second
    for task in range(6):
        assert first.admit(task, 9, Random(seed)) == second.admit(task, 9, Random(seed))
        assert 2 <= first.rollouts(task, 8) <= 8
        assert 1 <= first.turns(task, 20) <= 20


@golden("curator", "accept_all")
def test_uniform_draws_use_no_curator() -> None:
    assert curators_of("", 9) == curators_of([], 9) == curators_of("accept_all", 9) == ()


def test_several_curators_keep_their_order() -> None:
    chosen = curators_of([{"name": "greso", "epoch": 7}, "length_cap"], 9)

    assert chosen == (Greso(9, GresoOptions(epoch=7)), LengthCap())


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ("gresso", "did you mean 'greso'"),
        ({"name": "greso", "easi": 0.3}, "did you mean 'easy'"),
        ({"name": "greso", "easy": 0.0}, r"easy is 0.0; give a number in \[0.01, 0.99\]"),
        ({"name": "accept_all", "p": 1}, "has no options"),
        ({"options": 1}, "curator is"),
        ({"name": "paced", "alpha": 0}, "alpha is 0"),
        ({"name": "pass_rate", "measure": 0}, "measure is 0"),
        ({"name": "length_cap", "most": 0}, "most is 0"),
        ({"name": "adaptive_rollouts", "fewer_above": 1.0}, "fewer_above is 1.0"),
        ({"name": "filter_solved", "solved_at": 2.0}, "solved_at is 2.0"),
    ],
)
def test_an_invalid_curator_is_refused_by_name(value: object, match: str) -> None:
    with pytest.raises(Refused, match=match):
        curators_of(value, 9)


def lenient(tasks: int) -> Curator:
    """A user's curator."""
    return LengthCap(LengthCapOptions(most=tasks))


def test_a_user_curator_is_a_function_of_the_number_of_tasks() -> None:
    (chosen,) = curators_of(f"{__name__}:lenient", 9)

    assert chosen.turns(0, 64) == 9
