"""A run reports the samples it leaves out above 1 %, by reason and with a remedy."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from transformers import AutoConfig

from rollcall.compose.conductor.live_panel import line
from rollcall.compose.conductor.run_summary import summary, summary_lines
from rollcall.compose.conductor.run_watch import RunWatch
from rollcall.consumers.heldout import HeldOut, HeldOutPlan
from rollcall.consumers.history.runs.run_figures import RunFigures
from rollcall.schemas.messages import RolloutRequest, Task, TrainStep
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.curation.buffer import Buffer
from rollcall.trainer.curation.judge import BESIDE_LIMIT
from rollcall.trainer.curation.left_out import ASKED_FOR, CANCELLED, PARTS, LeftOut
from rollcall.trainer.curation.reading import Reading, reading_of, unknown_token
from rollcall.trainer.rules.catalogue import FILTERS
from rollcall.trainer.rules.samples import LIMITS
from tests.support.scored_trajectories import sample, scored, sequence
from tests.support.tiny_run import RECIPE, World

PLAN = HeldOutPlan(RolloutRequest("", Task(), run_id="run"), (0, 0), 1, 1.0, 0.5)
REASONS = ("stale", "unscored", "token_limit", BESIDE_LIMIT, *CANCELLED, *ASKED_FOR, "of a plug-in")
STEPS = st.lists(
    st.tuples(
        st.integers(9, 200),
        st.dictionaries(st.sampled_from(REASONS), st.integers(1, 9)),
        st.dictionaries(st.sampled_from(PARTS), st.integers(1, 9)),
    ),
    max_size=8,
)


def step_of(used: int, dropped: dict[str, int], parts: dict[str, int], at: int = 0) -> TrainStep:
    metrics = {"used": float(used), **{part: float(n) for part, n in parts.items()}}
    return TrainStep("policy", "run", at + 1, at + 1, at, (), metrics, dropped)


@given(STEPS)
def test_only_reasons_above_one_percent_are_reported(steps: list[Any]) -> None:
    told, lost, rollouts = LeftOut(), Counter[str](), 0
    for used, dropped, parts in steps:
        told.take(step_of(used, dropped, parts))
        counted = {reason: n for reason, n in dropped.items() if reason not in CANCELLED}
        rollouts += used + sum(counted.values())
        lost.update({r: n for r, n in counted.items() if r not in ASKED_FOR} | parts)

    said = told.reported()

    assert said == {reason: n for reason, n in lost.items() if n > 0.01 * rollouts}
    assert told.rollouts == rollouts
    assert bool(str(told)) == bool(said)
    assert len(told.lines()) == (1 + len(said) if said else 0)
    assert all(each["remedy"] for each in told.plain().values())


def test_configured_filters_count_as_intended_drops() -> None:
    assert set(FILTERS) - {"none"} <= ASKED_FOR


ENDS = st.lists(st.sampled_from(["finished", "failed", *sorted(LIMITS)]), min_size=3, max_size=3)


@given(st.lists(ENDS, max_size=6), st.sampled_from(["drop", "train_partial"]))
def test_each_rollout_is_trained_on_or_dropped_for_one_reason(
    groups: list[list[str]], missing: str
) -> None:
    config = LearnerConfig(advantage="grpo", missing=missing)
    buffer = Buffer(config.curation("run", "policy"))
    expected: Counter[str] = Counter()
    for number, ends in enumerate(groups):
        for member, end in enumerate(ends):
            fine = end == "finished"
            one = scored(
                f"r{number}-{member}", 1.0 if fine else None, group=f"g{number}", group_size=3,
                status="finished" if fine else "failed",
            )  # fmt: skip
            one = replace(
                one, trajectory=replace(one.trajectory, code=end if end in LIMITS else "")
            )
            buffer.offer(one, 0, 3 * number + member)
        expected += reasons_of(ends, missing)

    assert {r: t.count for r, t in buffer.drops().items()} == expected


def reasons_of(ends: list[str], missing: str) -> Counter[str]:
    """Of a group that is dropped, or of what a group goes without."""
    bad, good = [end for end in ends if end != "finished"], ends.count("finished")
    if not bad:
        return Counter()
    if missing == "train_partial" and good > 1:
        return Counter()  # counted when it is trained on
    beside = "singleton" if missing == "train_partial" else "incomplete"
    if missing == "drop" and "failed" not in bad:
        beside = BESIDE_LIMIT
    return Counter(bad) + Counter({beside: good})


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1), max_size=5),
    st.integers(-1, 5),
    st.integers(0, 8),
)
def test_samples_with_unknown_tokens_or_a_full_context_are_counted(
    rows: list[list[tuple[int, bool]]], unknown: int, context: int
) -> None:
    samples = []
    for number, row in enumerate(rows):
        ids, mask = [1, *(i for i, _ in row), 2], [0, *(int(ours) for _, ours in row), 1]
        samples.append(sample(scored(f"r{number}", sequences=(sequence(ids, mask),)), number))
    read = [{1, *(i for i, ours in row if not ours)} for row in rows]

    told = Reading(unknown, context, window=True).metrics(samples)

    assert told.get("unknown_words", 0) == sum(unknown in each for each in read)
    assert told.get("window_full", 0) == sum(0 < context <= len(row) + 2 for row in rows)
    assert "context_full" not in told


def test_a_sliding_window_that_limits_the_context_is_reported(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"max_position_embeddings": 64, "vocab_size": 8}
    with capture_logs() as said:
        slides = reading_of(tmp_path, AutoConfig.for_model("mistral", sliding_window=16, **fields))
    plain = reading_of(tmp_path, AutoConfig.for_model("llama", **fields))

    assert slides == Reading(context=16, window=True)
    assert plain == Reading(context=64)
    assert [(each["positions"], each["read"]) for each in said] == [(64, 16)]


@pytest.mark.parametrize(
    ("model", "before", "unknown"),
    [
        ('{"type": "WordLevel", "vocab": {"a": 0, "<unk>": 1}, "unk_token": "<unk>"}', "null", 1),
        ('{"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "<unk>"}', "null", -1),
        ('{"type": "Unigram", "vocab": [["<unk>", 0.0]], "unk_id": 0}', "null", 0),
        ('{"type": "BPE", "vocab": {"<end>": 0}, "unk_token": null}', "null", -1),
        ('{"type": "BPE", "vocab": {"u": 0}, "unk_token": "u"}', '{"type": "ByteLevel"}', -1),
        ('{"type": "BPE", "vocab": {"u": 2}, "unk_token": "u", "byte_fallback": true}', "{}", -1),
    ],
)  # fmt: skip
def test_the_unknown_token_is_found(tmp_path: Path, model: str, before: str, unknown: int) -> None:
    text = f'{{"model": {model}, "pre_tokenizer": {before}}}'
    (tmp_path / "tokenizer.json").write_text(text)

    assert unknown_token(tmp_path) == unknown


def test_a_run_with_unknown_tokens_reports_it(tmp_path: Path) -> None:
    text = RECIPE.replace('"lake"', '["<bos>", "<a>", "<unk>", "L", "D", "R", "U"]')
    world = World(
        tmp_path, text.replace("steps = 4", "steps = 2").replace("every = 2", "every = 0")
    )
    assert unknown_token(world.folder.policy) == 2
    with capture_logs() as logs:
        world.train(world.trainer())
    figures = RunFigures(world.folder.run_id, "", HeldOut(PLAN))
    for step in world.steps():
        assert step.metrics["unknown_words"] == step.metrics["used"]
        figures.take_step(step)

    warned = [each for each in logs if each["event"] == "rollouts_left_out"]
    assert [each["reason"] for each in warned] == ["unknown_words"]
    told = summary(figures, {}, seed=1, wall_s=1.0)
    assert told["left_out"]["unknown_words"]["share"] == 1.0
    assert "unknown_words: trained on, though they read words" in summary_lines(figures, {}, told)
    assert "left out unknown_words 16 (100 %) of 16 rollouts" in line(figures, 0.0, RunWatch(2, 9))
