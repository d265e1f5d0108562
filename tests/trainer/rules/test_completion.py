"""The rules that complete a batch.

Golden values: the design's page on algorithms, section 5.
"""

from typing import Any

import pytest

from rollcall.producers.admission import AdmissionRule
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import UNFINISHED
from rollcall.schemas.rules import choose
from rollcall.trainer.config.curation import Curation
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.curation.buffer import Buffer
from rollcall.trainer.rules.catalogue import COMPLETIONS
from rollcall.trainer.rules.completion import Waiting
from tests.support.golden import golden
from tests.support.scored_trajectories import CURATION, scored, sequence

TOKENS = {"name": "token_budget", "tokens": 100}


def whole(rule: object, tokens: list[int], wanted: int = 2, capacity: int = 8) -> int:
    found: int = choose("batch", rule, COMPLETIONS)(Waiting(tuple(tokens), wanted, capacity))
    return found


@golden("batch", "token_budget")
def test_a_token_budget_batch_completes_with_the_third_completion() -> None:
    """Φ 100 and completions of 40, 30, 50, 20."""
    completions = [40, 30, 50, 20]

    assert [whole(TOKENS, completions[:n]) for n in range(5)] == [0, 0, 0, 3, 3]
    assert whole(TOKENS, [100]) == 1
    assert whole(TOKENS, [1] * 8) == 8, "more than may wait would never come"


@golden("batch", "groups")
def test_a_batch_completes_at_its_number_of_groups() -> None:
    assert [whole("groups", [1] * n) for n in range(4)] == [0, 0, 2, 2]


def buffer_of(batch: object, lengths: list[int]) -> Buffer:
    curation = Curation("run", "policy", needs_group=False, batch=batch)  # type: ignore[arg-type]
    buffer = Buffer(curation)
    for offset, length in enumerate(lengths):
        tokens = sequence(range(length + 1), [0] + [1] * length)
        buffer.offer(scored(f"r{offset}", sequences=(tokens,)), 0, offset)
    return buffer


def test_the_buffer_hands_out_one_batch_and_keeps_the_rest() -> None:
    buffer = buffer_of(TOKENS, [40, 30, 50, 20])

    taken = buffer.take(8, v_now=0)

    assert taken is not None
    assert [sample.length for sample in taken] == [40, 30, 50]
    assert buffer.ready_groups() == 1
    assert buffer.take(8, v_now=0) is None


def eager(waiting: Waiting) -> int:
    """A user's rule, which asks for more samples than exist."""
    return 99 if waiting.tokens else -1


def test_a_user_rule_never_takes_more_samples_than_exist() -> None:
    buffer = buffer_of(f"{__name__}:eager", [1, 2])

    assert len(buffer.take(8, v_now=0) or ()) == 2
    assert buffer.take(8, v_now=0) is None


def test_a_rollout_unfinished_a_third_time_is_purged() -> None:
    """σ 2: at the first two boundaries it is resumed."""
    config = LearnerConfig.of({"batch": TOKENS, "retention": 2, "group_size": 2})
    curation = config.curation("run", "policy")

    assert curation.continues == UNFINISHED
    assert [Buffer(curation).cut_off.hold(ended(n, curation)) for n in range(3)] == [
        True, True, False,
    ]  # fmt: skip


def ended(generation: int, curation: Curation) -> Any:
    from rollcall.trainer.curation.judge import judge

    name = f"r:{generation}" if generation else "r"
    return judge(scored(name, status="cancelled"), 0, 0, curation)


@pytest.mark.parametrize(
    ("accepted", "running", "groups"), [(0, 0, 16), (0, 64, 8), (512, 64, 8), (0, 128, 0)]
)
def test_admission_keeps_the_permitted_number_of_rollouts_in_flight(
    accepted: int, running: int, groups: int
) -> None:
    rule = AdmissionRule(0, 64, 128, 8, refills=True)

    assert rule.grant(3, 3 * 64 + accepted, running) == groups


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch": {"name": "token_budget", "tokens": 0}}, "tokens is 0; give at least 1"),
        ({"batch": "token_budgets"}, "unknown batch 'token_budgets'; did you mean"),
        ({"batch": TOKENS, "replay_ratio": 0.5}, "replay_ratio is a share of groups_per_step"),
        ({"batch": TOKENS, "over_provision": 2}, "give one of them"),
        ({"batch": TOKENS, "max_staleness": 0}, "which max_staleness 0 drops"),
        ({"batch": TOKENS, "on_stale": "wait"}, "on_stale 'wait' waits for it"),
    ],
)
def test_settings_that_conflict_with_a_token_budget_are_refused(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(Refused, match=message):
        LearnerConfig.of(values)


def test_batches_of_groups_are_the_default_and_change_no_digest() -> None:
    assert CURATION.batch == "groups"
    assert LearnerConfig(batch="groups").digest() == LearnerConfig().digest()
    assert LearnerConfig.of({"batch": TOKENS}).digest() != LearnerConfig().digest()
