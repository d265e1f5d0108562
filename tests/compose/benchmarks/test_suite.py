"""The table and file of the benchmarks; their measurements are tested by running them."""

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from rollcall.compose.benchmarks import echo, live_memory, load, overload, scan, spine, suite, wire
from rollcall.compose.benchmarks.figure import Figure
from rollcall.compose.settings import Settings
from rollcall.consumers.audit.audit import audit
from rollcall.consumers.audit.partition_facts import FORGET_EVERY
from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.errors import Refused, Unavailable
from rollcall.schemas.messages import (
    AttemptStarted,
    EnvironmentStep,
    Event,
    ModelAnswered,
    ModelCall,
)
from rollcall.schemas.topics import Topics, wanted

TOPICS = Topics()
JOURNALED = 19
"""Journal entries of a rollout of eight turns."""


def test_unknown_benchmark_is_refused_before_any_runs() -> None:
    with pytest.raises(Refused, match="did you mean 'turns_64'"):
        suite.run_benchmarks(["turns_65"], Settings(), None)


def test_failed_benchmark_does_not_lose_the_other_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def silent(settings: Settings) -> Figure:
        msg = "no broker answers"
        raise Unavailable(msg)

    monkeypatch.setitem(suite.BENCHMARKS, "turns_64", silent)
    monkeypatch.setitem(suite.BENCHMARKS, "up_warm_s", lambda settings: Figure(5.0, "s", 2.5))

    with pytest.raises(Unavailable, match="no broker answers"):
        suite.run_benchmarks(["turns_64", "up_warm_s"], Settings(), tmp_path / "figures.json")

    assert list(json.loads((tmp_path / "figures.json").read_text())) == ["up_warm_s"]


def test_figure_is_written_with_its_ceiling_and_ratio() -> None:
    faster = Figure(50.0, "turns/s", 200.0)
    slower = Figure(8.0, "ms", 2.0, lower_is_better=True)

    written = suite.plain({"turns_64": faster, "turn_latency_ms": slower})

    assert written["turns_64"] == {
        "value": 50.0, "unit": "turns/s", "ceiling": 200.0, "ratio": 0.25
    }  # fmt: skip
    assert written["turn_latency_ms"]["ratio"] == 0.25


def test_one_run_gives_median_p99_and_tail_beside_the_echo() -> None:
    times = spine.TurnTimes()
    times.measured = {"workers": [4.0] * 380 + [40.0] * 20, "echo": [2.0] * 380 + [6.0] * 20}
    figures = times.median, times.p99, times.tail

    written = suite.plain({f.__name__: f(Settings()) for f in figures})

    seen = [(w["value"], w["ceiling"], w["unit"]) for w in written.values()]
    assert seen == [(4.0, 2.0, "ms"), (40.0, 6.0, "ms"), (10.0, 3.0, "x")]
    [ours, echoed] = times.median(Settings()).notes
    assert ours.startswith("workers: 400 turns, p50 4.0 ms, p99 40.0 ms, which is 10.0 times that")
    assert echoed.startswith("echo: ")


def test_memory_per_live_rollout_exceeds_its_payload() -> None:
    figure = live_memory.live_rollout(Settings(), live=1000)

    assert figure.unit == "bytes"
    assert 1_000 < figure.ceiling < figure.value < 100_000


def test_server_under_fourfold_overload_keeps_its_full_goodput() -> None:
    figure = overload.goodput(Settings(), 4.0, window_s=300)

    assert (figure.unit, figure.ceiling) == ("answers/s", 2.0)
    assert 0.9 < figure.ratio <= 1.01


def test_rollout_of_32768_tokens_is_sent_about_twice() -> None:
    figure = wire.bytes_of_a_rollout(Settings())

    assert figure.unit == "bytes"
    assert figure.ceiling < figure.value < 1_500_000
    assert len(figure.notes) == 6


@pytest.mark.parametrize("tokens", [64, 512])
def test_measured_rollout_has_eight_turns_of_the_given_token_count(tokens: int) -> None:
    codec = Codec(LocalRegistry())
    player = load.Player(codec, tokens, TOPICS)

    played = list(player.play(load.request("r")))
    said = [codec.decode(event, Event).body for _, event in played]

    calls = [command for command, _ in played if isinstance(command, ModelCall)]
    steps = [command.kind for command, _ in played if isinstance(command, EnvironmentStep)]
    assert [len(b.token_ids) // 4 for b in said if isinstance(b, ModelAnswered)] == [tokens] * 8
    assert steps == ["reset"] + ["step"] * 8
    a_turn = tokens + load.SEEN_TOKENS
    assert [c.prefix_length for c in calls] == [a_turn * n for n in range(8)]


def test_echo_carries_the_bytes_of_whole_turns_without_the_reset() -> None:
    codec = Codec(LocalRegistry())

    values = load.hops(codec, TOPICS, 64, "r")

    assert len(values) == load.HOPS * load.TURNS
    for number, value in enumerate(values):
        codec.decode(value, echo.RECORDS[number % load.HOPS])


def history(partitions: int) -> SimpleNamespace:
    log = MemoryLog(wanted("rl.", [load.POLICY], partitions=partitions))
    return SimpleNamespace(log=log, codec=Codec(LocalRegistry()), topics=TOPICS)


def test_scanned_log_is_complete() -> None:
    whole = history(partitions=2)

    scan.fill(whole, 5)

    report = audit(whole, drained=True)
    assert report.ok
    assert (report.ended, report.not_run_again, report.records) == (5, 0, 5 * scan.RECORDS)


def test_rollout_that_crosses_the_audit_forget_point_is_counted() -> None:
    # Given stray journal entries, so that a rollout begins with the thousandth
    whole = history(partitions=1)
    stray = whole.codec.encode(TOPICS.events, Event.decision("x", 1, "w", AttemptStarted("?")))
    for _ in range((FORGET_EVERY - 1) % JOURNALED):
        whole.log.append(TOPICS.events, b"x", stray, 0)

    scan.fill(whole, FORGET_EVERY // JOURNALED + 1)

    report = audit(whole, drained=True)
    assert report.breaches == []
    assert report.ended == FORGET_EVERY // JOURNALED + 1


def test_measured_environment_ends_after_its_turns_and_reports_times() -> None:
    environment = load.Instant(turns=2)

    seen = [environment.open(0), environment.step("go"), environment.step("go")]

    assert [each.terminated for each in seen] == [False, False, True]
    times = [each.info["at_ns"] for each in seen]
    assert times == sorted(times)


def test_small_figures_keep_their_digits_in_the_table() -> None:
    out = io.StringIO()

    Console(file=out, width=100).print(suite.table({"up_warm_s": Figure(3.257, "s", 2.1, True)}))

    assert "3.257" in out.getvalue()
    assert "64%" in out.getvalue()
