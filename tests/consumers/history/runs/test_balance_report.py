"""`rollcall balance` from the records of a run's steps alone."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rollcall.compose.cli.run_reports import balance_lines
from rollcall.consumers.history.runs.balance_report import balance_of
from rollcall.consumers.history.runs.training_record import TrainedRun
from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import TrainStep
from rollcall.schemas.topics import Topics, wanted
from rollcall.trainer.config.learner_config import LearnerConfig

RUN = TrainedRun("run", "policy", LearnerConfig(), Path(), Path())
QUIET = {
    "produced": 100.0, "used": 70.0, "dropped": 20.0, "cancelled": 10.0,
    "length_used": 5.0, "length_dropped": 8.0, "length_cancelled": 2.0,
    "wait_seconds": 1.0, "cycle_seconds": 50.0, "wait_share": 0.02,
}  # fmt: skip


@dataclass
class Steps:
    """A log on which only steps of training are."""

    topics: Topics = field(default_factory=lambda: Topics("m."))
    codec: Codec = field(default_factory=lambda: Codec(LocalRegistry()))

    def __post_init__(self) -> None:
        self.log = MemoryLog(wanted("m.", ["policy"], partitions=1))

    def step(self, number: int, **changed: Any) -> None:
        record = TrainStep("policy", "run", number, number, number - 1, (), QUIET | changed)
        value = self.codec.encode(self.topics.train_steps, record)
        self.log.append(self.topics.train_steps, b"policy", value)


def test_sampled_but_unused_rollouts_mean_one_model_server_too_many() -> None:
    history = Steps()
    for number in range(1, 13):
        history.step(number)

    report = balance_of(history, RUN, 11, steps=10)

    assert (report.first, report.last, report.produced, report.used) == (3, 12, 1000, 700)
    assert (report.length_used, report.length_dropped) == (5.0, 8.0)
    assert report.proposed == 10  # ceil(1.10 * 11 * 700 / 900)
    assert balance_lines(report)[-1].startswith("take 1 of the 11 model servers away")


def test_a_waiting_trainer_gets_servers_added_by_its_wait_share() -> None:
    history = Steps()
    history.step(1, wait_seconds=1.0, cycle_seconds=100.0)
    history.step(2, wait_seconds=268.0, cycle_seconds=900.0)

    report = balance_of(history, RUN, 6)

    assert report.wait_share == pytest.approx(0.269)
    assert (report.proposed, report.change) == (9, 3)
    assert "add 3 to the 6 model servers" in balance_lines(report)[-1]
    assert "26.9%" in balance_lines(report)[0]


def test_steps_of_an_older_release_are_refused_and_mixed_ones_skipped() -> None:
    history = Steps()
    with pytest.raises(Refused, match="it has no step"):
        balance_of(history, RUN, 1)
    record = TrainStep("policy", "run", 1, 1, 0, (), {"loss": 0.0})
    value = history.codec.encode(history.topics.train_steps, record)
    history.log.append(history.topics.train_steps, b"policy", value)
    with pytest.raises(Refused, match="a release before this one"):
        balance_of(history, RUN, 1)

    history.step(2, wait_seconds=3.5)

    report = balance_of(history, RUN, 1)
    assert (report.first, report.last) == (2, 2)
    assert balance_lines(report)[-1] == "leave it at one model server"
