"""Admission on random schedules: ends, failures, torn records, duplicates and restarts.

The trainer is the real one; its learner only counts, so that many schedules can be tried.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollcall.trainer.config.learner_config import LearnerConfig
from tests.support.changed_config import changed
from tests.support.staged_run import CONFIG, Stage
from tests.support.tiers import examples

ACTS = st.tuples(
    st.sampled_from(
        ["finished", "finished", "finished", "failed", "torn", "again", "restart", "turn"]
    ),
    st.integers(0, 30),
)
CONFIGS = st.builds(
    lambda staleness, missing: changed(CONFIG, max_staleness=staleness, missing=missing),
    st.integers(0, 2),
    st.sampled_from(["drop", "train_partial"]),
)


def act(stage: Stage, what: str, number: int) -> None:
    air = stage.in_the_air()
    if what == "restart":
        stage.begin()
    elif what == "again":
        stage.again(number)
    elif what != "turn" and air:
        stage.end(air[number % len(air)], what)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(CONFIGS, st.lists(ACTS, max_size=50), st.sampled_from([(0, 0), (500, 502)]))
def test_the_admission_rule_holds_and_the_run_ends_on_every_schedule(
    config: LearnerConfig, schedule: list[tuple[str, int]], seeds: tuple[int, int]
) -> None:
    with TemporaryDirectory() as directory:
        stage = Stage(Path(directory), config, seeds)

        for what, number in schedule:
            act(stage, what, number)
            stage.turn()
            running = [r for r in stage.in_the_air() if r.purpose == "train"]
            assert stage.trainer.running() == len(running)
        stage.drain()

        assert [step.step for step in stage.steps()] == [1, 2, 3, 4]


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])
@given(
    CONFIGS,
    st.lists(
        st.tuples(st.sampled_from(["finished", "nameless", "restart"]), st.integers(0, 30)),
        max_size=40,
    ),
    st.sampled_from([(0, 0), (500, 502)]),
)
def test_unnamed_ends_do_not_block_the_run(
    config: LearnerConfig, schedule: list[tuple[str, int]], seeds: tuple[int, int]
) -> None:
    with TemporaryDirectory() as directory:
        stage = Stage(Path(directory), config, seeds)

        for what, number in schedule:
            act(stage, what, number)
            stage.turn()
        stage.drain()

        assert [step.step for step in stage.steps()] == [1, 2, 3, 4]
