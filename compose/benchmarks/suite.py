"""`rollcall bench`: each figure with a ceiling that was measured in the same run.

A ceiling is the best that this machine can do without our code: the same records echoed by bare
clients, the payload without the objects around it, the services' processes alone.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rollcall.compose.benchmarks import (
    adoption,
    agent_memory,
    agent_takeover,
    async_speedup,
    box_commands,
    box_starts,
    box_turns,
    engine_speed,
    hosted_calls,
    hostile_session,
    live_memory,
    overload,
    refold,
    requirements,
    scan,
    service_starts,
    spine,
    takeover,
    train_steps,
    weights_files,
    wire,
)
from rollcall.compose.benchmarks.figure import BenchmarkUnavailable, Figure
from rollcall.compose.files import write_json
from rollcall.compose.services.service_errors import ServicesError
from rollcall.compose.settings import Settings
from rollcall.schemas.errors import RollcallError
from rollcall.schemas.message_code import message_code
from rollcall.schemas.names import unknown_name

BOX_FIGURES: Mapping[str, Callable[..., Figure]] = {
    "box_warm_ms": box_starts.warm,
    "box_cold_ms": box_starts.cold,
    "shell_action_ms": box_commands.shell_action,
}
TURNS_64 = spine.TurnBenchmark(64)
TURN_TIMES = spine.TurnTimes()
BENCHMARKS: Mapping[str, Callable[[Settings], Figure]] = {
    "turns_64": TURNS_64.per_second,
    "us_per_hop": TURNS_64.us_per_hop,
    "turns_512": spine.TurnBenchmark(512).per_second,
    "turn_latency_ms": TURN_TIMES.median,
    "turn_p99_ms": TURN_TIMES.p99,
    "turn_tail": TURN_TIMES.tail,
    "hosted_calls_64": hosted_calls.CALLS_64,
    "hosted_calls_512": hosted_calls.CALLS_512,
    "hosted_call_latency_ms": hosted_calls.call_latency,
    "hosted_calls_parallel": hosted_calls.side_by_side,
    "hostile_session_ms": hostile_session.latency,
    "hostile_session_mib": hostile_session.memory,
    "hosted_agent_bytes": agent_memory.private,
    "hosted_resume_s": agent_takeover.kill,
    **{
        f"{figure}_{name}": partial(BOX_FIGURES[figure], name=name)
        for figure in BOX_FIGURES
        for name in requirements.IMAGES
    },
    "boxes_per_s": box_commands.boxes_per_s,
    "box_turns_per_s": box_turns.turns_per_second,
    "grade_s": box_commands.grade_s,
    "refold_events_per_s": refold.refold,
    "kill_10000_s": takeover.kill,
    "live_rollout_bytes": live_memory.live_rollout,
    "overload_goodput_1.5x": lambda settings: overload.goodput(settings, 1.5),
    "overload_goodput_4x": lambda settings: overload.goodput(settings, 4.0),
    "wire_bytes_32k": wire.bytes_of_a_rollout,
    "scan_records_per_s": scan.records_per_s,
    "export_records_per_s": scan.export_records_per_s,
    "rescore_trajectories_per_s": scan.rescore_trajectories_per_s,
    "async_speedup": async_speedup.async_speedup,
    "train_tokens_per_s": train_steps.train_tokens_per_s,
    "train_tokens_per_s_8": partial(train_steps.train_tokens_per_s, shape=train_steps.LANGUAGE_8),
    "train_tokens_per_s_lake": train_steps.train_tokens_per_s_lake,
    "train_flops": train_steps.train_flops,
    "version_s": weights_files.version_s,
    "checkpoint_stall_s": weights_files.checkpoint_stall_s,
    "peak_trainer_bytes": weights_files.peak_trainer_bytes,
    "engine_tokens_per_s": engine_speed.engine_tokens_per_s,
    "engine_tokens_per_s_lake": engine_speed.engine_tokens_per_s_lake,
    "adopt_pause_ms": adoption.adopt_pause_ms,
    "delta_ratio": weights_files.delta_ratio,
    "delta_bytes_per_s": weights_files.delta_bytes_per_s,
    "up_cold_s": service_starts.up_cold,
    "up_warm_s": service_starts.up_warm,
}


def run_benchmarks(names: list[str], settings: Settings, json: Path | None) -> None:
    """Run the named benchmarks, or all. Raises Refused before any runs, and at the end the first
    error of one that failed, after all others have run. If all are run, those with missing
    requirements are left out, which is no failure.
    """
    for name in names:
        if name not in BENCHMARKS:
            raise unknown_name("benchmark", name, BENCHMARKS)
    terminal = Console()
    figures: dict[str, Figure] = {}
    failures: dict[str, Exception] = {}
    left_out: dict[str, BenchmarkUnavailable] = {}
    for name in names or BENCHMARKS:
        with terminal.status(f"measuring {name}"):
            try:
                figures[name] = BENCHMARKS[name](settings)
            except (RollcallError, ServicesError) as error:
                if isinstance(error, BenchmarkUnavailable) and not names:
                    left_out[name] = error
                else:
                    failures[name] = error
    terminal.print(table(figures))
    terminal.print(f"codec: {message_code().form}", highlight=False)
    for name, figure in figures.items():
        for note in figure.notes:
            terminal.print(f"{name}  {note}", highlight=False, soft_wrap=True)
    if json is not None:
        write_json(json, plain(figures))
    for name, reason in left_out.items():
        terminal.print(f"{name}  left out: {reason}", highlight=False, soft_wrap=True)
    for name, failure in failures.items():
        terminal.print(f"{name}  not measured: {failure}", highlight=False, soft_wrap=True)
    if failures:
        raise next(iter(failures.values()))


def plain(figures: Mapping[str, Figure]) -> dict[str, dict[str, float | str]]:
    """Return the figures as plain values for the file."""
    return {
        name: {
            "value": round(figure.value, 3),
            "unit": figure.unit,
            "ceiling": round(figure.ceiling, 3),
            "ratio": round(figure.ratio, 3),
        }
        for name, figure in figures.items()
    }


def table(figures: Mapping[str, Figure]) -> Table:
    """Return the figures as a table."""
    shown = Table("benchmark", "value", "ceiling", "unit", "ratio")
    for column in (1, 2, 4):
        shown.columns[column].justify = "right"
    for name, figure in figures.items():
        value, ceiling = (f"{number:,.4g}" for number in (figure.value, figure.ceiling))
        if figure.value >= 1000:
            value, ceiling = f"{figure.value:,.0f}", f"{figure.ceiling:,.0f}"
        shown.add_row(name, value, ceiling, figure.unit, f"{figure.ratio:.0%}")
    return shown
