"""The phases of rollouts, p50 and p95, as text."""

from collections.abc import Mapping

from rollcall.consumers.history.rollouts.phase_quantiles import PhaseTimes, Seconds

NAMES: Mapping[str, str] = {
    "submission_s": "submission",
    "scheduling_s": "scheduling",
    "environment_start_s": "environment start",
    "execution_s": "execution",
}


def phase_lines(phases: PhaseTimes) -> list[str]:
    """Return a line on all phases, and one on environment starts by mode; none without data."""
    known = {NAMES[name]: seconds for name, seconds in phases.quantiles().items()}
    starts = {f"{mode} boxes": seconds for mode, seconds in phases.starts().items()}
    lines = []
    if known:
        lines.append(f"phases   p50 / p95: {_words(known)}")
    if starts:
        lines.append(f"starts   p50 / p95: {_words(starts)}")
    return lines


def _words(quantiles: Mapping[str, Seconds]) -> str:
    return ", ".join(f"{name} {_span(each)}" for name, each in quantiles.items())


def _span(seconds: Seconds) -> str:
    return f"{seconds['p50']:.3f} / {seconds['p95']:.3f} s"
