"""Samples shared by other runs are held, used or dropped, and counted."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import ScoredTrajectory
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.config.tables import Recorded, Share, Staleness
from rollcall.trainer.curation.buffer import Buffer
from rollcall.trainer.learner.step import Learner
from rollcall.trainer.rules.samples import RECORDED, SHARED, Sample
from tests.support.changed_config import changed
from tests.support.scored_trajectories import CURATION, some_samples
from tests.support.scored_trajectories import scored as written

SHARE = Share(ratio=0.5, max_age_s=60.0, capacity=2)
CURATED = replace(CURATION, staleness=Staleness(bound=100), share=SHARE)


def as_ours(record: ScoredTrajectory) -> ScoredTrajectory:
    """Text that reads as the tokens that it was."""
    return record


def record(group: str, number: int, reward: float, run: str, at_s: int = 0) -> ScoredTrajectory:
    made = written(f"{group}-{number}", reward, group=group, group_size=2, run_id=run)
    return replace(made, trajectory=replace(made.trajectory, ended_ms=1000 * at_s))


class Stretch:
    """A buffer, and how far its partition is written."""

    def __init__(self, buffer: Buffer | None = None) -> None:
        self.buffer = buffer or Buffer(CURATED, reencode=as_ours)
        self.end = 0

    def offer(
        self, group: str, rewards: Sequence[float] = (0, 1), run: str = "theirs", at_s: int = 0
    ) -> None:
        for number, reward in enumerate(rewards):
            self.buffer.offer(record(group, number, reward, run, at_s), 0, self.end)
            self.end += 1

    def drops(self) -> dict[str, int]:
        return {reason: tally.count for reason, tally in self.buffer.drops().items()}


def groups(samples: Sequence[Sample] | None) -> list[str]:
    return sorted({sample.group for sample in samples or ()})


def test_half_a_batch_is_the_newest_shared_groups_without_waiting() -> None:
    log = Stretch()
    for number in range(5):
        log.offer(f"own{number}", run="run")
    for number in range(2):
        log.offer(f"g{number}", at_s=number)

    first, second = log.buffer.take(2, v_now=0), log.buffer.take(2, v_now=0)
    third = log.buffer.take(2, v_now=0)

    assert [groups(first), groups(second)] == [["g1", "own0"], ["g0", "own1"]]
    assert groups(third) == ["own2", "own3"]
    assert first is not None
    assert [s.borrowed for s in first] == ["", "", SHARED, SHARED]
    assert {s.min_version for s in first if s.borrowed} == {-1}


def test_old_equal_or_surplus_shared_groups_are_dropped_with_their_reason() -> None:
    log = Stretch()

    log.offer("equal", (1, 1))
    for number in range(3):
        log.offer(f"g{number}", at_s=number)
    log.offer("half", (1,), at_s=5)
    log.offer("late", at_s=70)

    assert log.drops() == {"shared_equal": 2, "shared_surplus": 2, "shared_old": 5}
    assert log.buffer.held() == 2
    assert len(log.buffer.released()) == 9


def test_a_sample_that_cannot_be_reencoded_drops_its_group() -> None:
    log = Stretch(Buffer(CURATED, reencode=lambda record: None))

    log.offer("g")

    assert log.drops() == {"untold": 2}


def test_a_rewritten_group_is_not_trained_on_again_after_a_restart() -> None:
    log = Stretch()
    log.offer("own", run="run")
    log.offer("g")
    log.offer("g")
    assert groups(log.buffer.take(2, v_now=0)) == ["g", "own"]
    after = Stretch(Buffer(CURATED, reencode=as_ours))
    after.buffer.restore(log.buffer.recent(), log.buffer.drops())

    after.offer("g")

    assert after.drops()["duplicate"] == 4
    assert after.buffer.held() == 0


def test_records_of_unlisted_runs_and_evaluations_stay_outside() -> None:
    named = replace(CURATED, share=Share(**SHARE.model_dump() | {"runs": ("friend",)}))
    log = Stretch(Buffer(named, reencode=as_ours))

    log.offer("g")
    log.offer("f", run="friend")
    evaluated = written("e", purpose="evaluate", run_id="friend")
    log.buffer.offer(evaluated, 0, log.end)

    assert log.drops() == {"other_run": 3}
    assert log.buffer.held() == 2


def test_a_failed_batch_reports_its_shared_samples_as_dropped() -> None:
    log = Stretch()
    log.offer("own", run="run")
    log.offer("g")
    taken = log.buffer.take(2, v_now=0)
    assert taken is not None

    log.buffer.spoil(taken, "step_failed")

    assert log.drops() == {"step_failed": 4}
    assert log.buffer.used == 0


@pytest.mark.parametrize("loss", ["clip_higher", "m2po", "decoupled_ppo"])
def test_reencoded_text_starts_at_a_ratio_of_one(model_directory: str, loss: str) -> None:
    config = LearnerConfig(loss=loss, share=Share(), epochs=2, group_size=1)
    heard = [replace(each, borrowed=SHARED, min_version=-1) for each in some_samples(1)]
    once = Learner(model_directory, changed(config, epochs=1)).step(heard)
    twice = Learner(model_directory, config).step(heard)

    assert once["approx_kl"] == pytest.approx(0, abs=1e-9)
    assert once["log_ratio_abs_max"] == pytest.approx(0, abs=1e-5)
    assert once["staleness_max"] == 0
    assert twice["log_ratio_abs_max"] > 1e-4


def test_recorded_samples_keep_log_probabilities_and_have_no_own_version(
    model_directory: str,
) -> None:
    config = LearnerConfig(loss="m2po", recorded=Recorded(run="r"), group_size=1)
    samples = some_samples(1)
    recorded = [replace(each, borrowed=RECORDED, min_version=-1) for each in samples]

    lent, own = Learner(model_directory, config), Learner(model_directory, config)
    told, before = lent.step(recorded), own.step(samples)

    assert lent.tensors() == own.tensors()
    assert "gen_kl" in before
    assert "gen_kl" not in told


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"recorded": {"run": "r"}}, "nothing corrects for that"),
        ({"recorded": {}}, "name the run"),
        ({"recorded": {"run": "r", "offsets": ["0:9-3"]}, "loss": "m2po"}, "PARTITION:FIRST-END"),
        ({"recorded": {"run": "r", "ratio": 1.5}, "loss": "m2po"}, "between 0 and 1"),
        ({"share": {"ration": 0.5}}, "did you mean 'share.ratio'"),
        ({"share": {"ratio": 0.9}, "replay_ratio": 0.5}, "none would be new ones"),
        ({"share": {}, "stream": True, "max_staleness": 0, "advantage": "rloo"}, "on-policy"),
        ({"share": {}, "old_logprobs": "ewma"}, "no log-probabilities of then"),
        ({"share": {}, "batch": "token_budget", "groups_per_step": 8}, "counts no groups"),
        ({"share": {}, "ranks": 2}, "one process"),
    ],
)
def test_invalid_sharing_options_are_refused_with_the_reason(
    values: dict[str, Any], why: str
) -> None:
    with pytest.raises(Refused, match=why):
        LearnerConfig.of(values)


def test_a_sharing_buffer_without_a_reader_is_refused() -> None:
    with pytest.raises(Refused, match="somebody who reads"):
        Buffer(CURATED)
    assert LearnerConfig().digest() == LearnerConfig(recorded=None, share=None).digest()
    assert LearnerConfig(share=Share()).digest() != LearnerConfig().digest()
