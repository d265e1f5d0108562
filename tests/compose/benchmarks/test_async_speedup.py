"""Steps per hour with and without waiting: measured calls take as long as their latency says."""

from pathlib import Path

import pytest

from rollcall.compose.benchmarks import slow_rollouts
from rollcall.compose.benchmarks.async_speedup import Scale, async_speedup, bench_of
from rollcall.compose.benchmarks.slow_rollouts import STRAGGLE, SlowEngine, latency_s
from rollcall.compose.settings import Settings
from tests.support.model_calls import call_of
from tests.support.waiting import until

SMALL = Scale(groups=2, group_size=2, train_s=0.01, median_s=0.001)


def test_latency_depends_on_its_seed_and_five_percent_are_stragglers() -> None:
    plain = [latency_s("a", n) for n in range(2000)]
    tailed = [latency_s("a", n, stragglers=0.05) for n in range(2000)]

    assert plain == [latency_s("a", n) for n in range(2000)]
    slower = [b / a for a, b in zip(plain, tailed, strict=True) if b > 1.5 * a]
    # 2,000 draws of 5 %: 60 to 140 unless chance has one in ten thousand
    assert 60 < len(slower) < 140
    assert all(abs(times - STRAGGLE) < 1e-6 for times in slower)


def test_calls_are_answered_in_order_of_their_latency() -> None:
    engine = SlowEngine(median_s=0.01)
    calls = [call_of("r", seed, seed=seed) for seed in range(20)]
    for call in calls:
        engine.add(call)
    answered: list[int] = []

    def all_answered() -> bool:
        answered.extend(answer.call.seed for answer in engine.step())
        return len(answered) == len(calls)

    until(all_answered, 10, lambda: f"{len(answered)} are answered")

    slowest = max(calls, key=lambda call: latency_s("answer", call.seed))
    assert answered[-1] == slowest.seed
    assert not engine.busy()


def test_sampling_overlaps_training_only_with_positive_staleness(
    tmp_path: Path,
) -> None:
    in_the_air = {}
    for staleness in (0, 4):
        bench = bench_of(tmp_path / str(staleness), Settings(), SMALL, staleness)
        seen: list[int] = []
        bench.learner.meanwhile = lambda _, seen=seen, bench=bench: seen.append(
            bench.trainer.running()
        )
        bench.to_step(4)
        in_the_air[staleness] = seen
        for loop in bench.loops:
            loop.role.close()

    assert in_the_air[0] == [0, 0, 0, 0]
    assert sum(in_the_air[4]) > 0


@pytest.mark.thorough
def test_async_speedup_is_compared_with_the_slower_of_sampling_and_training() -> None:
    figure = async_speedup(Settings(), steps=(2, 3), scale=SMALL)

    assert figure.value > 0
    assert figure.ceiling > 0
    assert [note.partition(":")[0] for note in figure.notes] == [
        "step by step", "at most 4 versions old", "sampling alone",
    ]  # fmt: skip
    assert slow_rollouts.template("run").purpose == "train"
