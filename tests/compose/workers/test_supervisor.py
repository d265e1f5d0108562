"""Which workers are restarted after they die, and when the supervisor gives up."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rollcall.compose.processes import ChildProcess
from rollcall.compose.workers import supervisor as supervising
from rollcall.compose.workers.supervisor import (
    HEALTHY_S,
    MAX_REFUSALS,
    MAX_RESTARTS,
    WINDOW_S,
    Supervisor,
)
from rollcall.schemas.errors import Unfit


class Ended:
    """A process that has ended with a given code."""

    def __init__(self, code: int) -> None:
        self.code = code

    def poll(self) -> int:
        return self.code


def supervised(
    monkeypatch: pytest.MonkeyPatch, logs: Path, code_of: Callable[[int], int]
) -> tuple[Supervisor, list[int]]:
    """One worker whose n-th process ends with `code_of(n)` at once."""
    begun: list[int] = []

    def spawn(command: object, log_path: Path, **more: object) -> ChildProcess:
        begun.append(code_of(len(begun)))
        log_path.write_text(f"its last words, the {len(begun)}.\n")
        return Ended(begun[-1])  # type: ignore[return-value]

    monkeypatch.setattr(supervising, "spawn", spawn)
    monkeypatch.setattr(supervising, "RESTART_S", -1.0)
    made = Supervisor(logs, {})
    made.start("training-1", "training")
    return made, begun


def look(workers: Supervisor, times: int) -> None:
    for _ in range(times):
        workers.keep_alive()


@pytest.mark.parametrize(("code", "begun_in_all"), [(2, 1 + MAX_REFUSALS), (1, 1 + MAX_RESTARTS)])
def test_worker_that_keeps_exiting_is_restarted_a_few_times_then_quoted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, begun_in_all: int
) -> None:
    workers, begun = supervised(monkeypatch, tmp_path, lambda number: code)

    with pytest.raises(Unfit, match=rf"training-1 keeps dying.*\n.*words, the {begun_in_all}\."):
        look(workers, times=100)

    assert len(begun) == begun_in_all


def test_only_consecutive_refusals_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    workers, begun = supervised(monkeypatch, tmp_path, lambda number: 1 if number == 2 else 2)

    look(workers, times=4)

    assert begun == [2, 2, 1, 2, 2]


class Time:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("code", [1, 2, -9])
@pytest.mark.parametrize("every_s", [WINDOW_S / MAX_RESTARTS * 1.01, 6 * 3600.0, HEALTHY_S])
def test_infrequent_deaths_never_end_a_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, every_s: float
) -> None:
    workers, begun = supervised(monkeypatch, tmp_path, lambda number: code)
    clock = workers.clock = Time()
    workers.children["training-1"].started = 0.0
    lives_long = every_s >= HEALTHY_S or code != 2

    for _ in range(150 if lives_long else MAX_REFUSALS):
        clock.now += every_s
        workers.keep_alive()

    assert len(begun) == 1 + (150 if lives_long else MAX_REFUSALS)


@pytest.mark.parametrize("before", [0, 60])
def test_rapid_deaths_end_a_run_after_any_healthy_period(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: int
) -> None:
    workers, begun = supervised(monkeypatch, tmp_path, lambda number: 1)
    clock = workers.clock = Time()
    workers.children["training-1"].started = 0.0
    for _ in range(before):
        clock.now += 6 * 3600.0
        workers.keep_alive()
    clock.now += 6 * 3600.0

    for _ in range(MAX_RESTARTS):
        workers.keep_alive()
        clock.now += 2.0
    with pytest.raises(Unfit, match="keeps dying"):
        workers.keep_alive()

    assert len(begun) == 1 + before + MAX_RESTARTS
