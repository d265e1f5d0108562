"""Batches with a token budget: cut-off rollouts continue, endless ones are purged."""

from collections import Counter
from pathlib import Path

import pytest

from rollcall.consumers.audit.audit import audit
from rollcall.schemas.ids import split_continued_id
from rollcall.schemas.rules import RuleChoice
from rollcall.trainer.config.learner_config import LearnerConfig
from tests.support.changed_config import changed
from tests.support.tiers import cases
from tests.support.uneven_run import UnevenRun

TOKENS = 40
CONFIG = LearnerConfig(
    steps=5, groups_per_step=1, group_size=2, max_staleness=8,
    batch=RuleChoice("token_budget", (("tokens", TOKENS),)),
)  # fmt: skip


def sizes(run: UnevenRun) -> list[list[int]]:
    """The tokens of each step's groups, the next stale ones first."""
    found = []
    for batch in run.learner.seen:
        groups: dict[str, list[int]] = {}
        for sample in batch:
            groups.setdefault(sample.group, []).append(sample.length)
        found.append([sum(lengths) for lengths in groups.values()])
    return found


@pytest.mark.parametrize("every", cases([0, 7], {7}))
def test_every_batch_has_its_tokens_and_no_rollout_is_lost_or_doubled(
    tmp_path: Path, every: int
) -> None:
    """Also for a repeatedly dying trainer."""
    run = UnevenRun(tmp_path, CONFIG, max_running=12)
    seen: list[list[int]] = []
    most = 0
    for turn in range(4_000):
        run.turn()
        most = max(most, run.trainer.running())
        if every and turn % every == 0:
            seen += sizes(run)
            run.begin()
        if run.trainer.learner.steps_done >= 5:
            break
    seen += sizes(run)
    run.settle()

    assert [step.step for step in run.steps()] == [1, 2, 3, 4, 5]
    assert most <= 12
    assert all(sum(groups) >= TOKENS > sum(groups) - max(groups) for groups in seen)
    trained = [
        split_continued_id(ref.rollout_id)[0] for step in run.steps() for ref in step.trajectories
    ]
    assert max(Counter(trained).values()) == 1
    assert run.cancelled()
    assert max(Counter(request.rollout_id for request in run.asked()).values()) == 1
    assert [str(breach) for breach in audit(run).breaches] == []
    run.close()


def test_a_rollout_cut_off_too_often_is_purged(tmp_path: Path) -> None:
    short = RuleChoice("token_budget", (("tokens", 4),))
    run = UnevenRun(
        tmp_path, changed(CONFIG, batch=short, retention=1, missing="train_partial"), max_running=24
    )
    run.train(5)
    run.settle()
    run.trainer.turn(0.0)

    generations = [split_continued_id(request.rollout_id)[1] for request in run.asked()]
    assert max(generations) == 1
    assert run.trainer.buffer.drops()["retention"].count > 0
    run.close()
