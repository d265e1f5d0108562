"""The learner's speed compared with TRL's, and the note when TRL is missing."""

from pathlib import Path

import pytest

from rollcall.compose.benchmarks import train_steps
from rollcall.compose.benchmarks.figure import BenchmarkUnavailable
from rollcall.compose.benchmarks.one_trainer import Shape, StepTime, ours
from rollcall.compose.settings import Settings
from tests.support import policies

SHAPE = Shape(groups=2, answers=3, prompt=4, answer=2)


def test_fastest_steps_are_compared_with_trl_as_the_ceiling() -> None:
    steps = {
        "shared": [StepTime(0.5, 0.5, 10**9), StepTime(0.4, 0.25, 2 * 10**9)],
        "rows": [StepTime(1.0, 1.0, 3 * 10**9)],
        "trl": [StepTime(1.0, 0.75, 4 * 10**9)],
    }

    figure = train_steps.figure(SHAPE, steps)

    assert (figure.value, figure.ceiling, figure.ratio) == (144, 48, 3)
    assert figure.notes[0] == "shared: 144 tokens/s, 0.40 s a step here, 2.00 GB at most"
    assert len(figure.notes) == 3


def test_figure_without_trl_says_so_in_its_notes() -> None:
    steps = {"shared": [StepTime(0.5, 1, 1)], "rows": [StepTime(1.0, 1, 1)]}

    figure = train_steps.figure(SHAPE, steps)

    assert figure.ceiling == 36
    assert figure.notes[-1] == train_steps.WITHOUT_TRL


def test_train_tokens_benchmark_is_skipped_without_the_language_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(BenchmarkUnavailable, match="policy fetch smollm2 --to smollm2"):
        train_steps.train_tokens_per_s(Settings())


@pytest.mark.parametrize("packing", ["rows", "shared"])
def test_training_step_uses_the_whole_batch(tmp_path: Path, packing: str) -> None:
    metrics = ours(str(policies.lake(tmp_path / "lake")), SHAPE, packing)()

    assert isinstance(metrics, dict)
    assert (metrics["trajectories"], metrics["tokens"], metrics["skipped"]) == (6, 12, 0)
