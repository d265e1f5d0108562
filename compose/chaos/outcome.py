"""The outcome of a chaos run: a table for people, a JSON object for programs."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table

from rollcall.compose.chaos.boxes import BoxFigures
from rollcall.compose.chaos.faults import ROLES, Fault
from rollcall.compose.chaos.hosted_figures import HostedFigures
from rollcall.compose.chaos.training_figures import TrainingFigures


@dataclass(frozen=True, slots=True)
class ChaosOutcome:
    """The faults of a workload, and their consequences."""

    seed: int
    harmed: Sequence[tuple[Fault, float | None]]
    """Every fault that was injected, and the seconds until there was progress again."""
    accepted: int
    ended: int
    lost: int
    doubled: int
    repeated: int
    breaches: int
    seconds: float
    misled: int = 0
    """Answers of the registry with a wrong schema."""
    cut_off: int = 0
    """Partitions that were cut off below the committed offset."""
    not_cut: Sequence[str] = ()
    """The reasons why planned cuts of partitions were not made."""
    buried: int = 0
    """Dead letters; there must be none, as the workload's records are valid."""
    silent: int = 0
    """Faults that stopped a topic or removed records and were not reported."""
    fell: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Workers that ended by themselves, with their exit codes."""
    hosted: HostedFigures = field(default_factory=HostedFigures)
    boxes: BoxFigures = field(default_factory=BoxFigures)
    training: TrainingFigures = field(default_factory=TrainingFigures)

    @property
    def ok(self) -> bool:
        """True if nothing was lost, doubled, breached, asked again, left or trained otherwise."""
        said = not self.silent and not self.buried
        wrong = self.lost or self.doubled or self.breaches or self.hosted.asked_again
        figures = self.boxes.ok and self.training.ok
        return not wrong and said and figures and self.ended == self.accepted

    def times(self) -> list[float]:
        return [took for _, took in self.harmed if took is not None]


def plain(outcome: ChaosOutcome) -> dict[str, Any]:
    """Return the outcome as plain values for the file."""
    p50, longest = _middle_and_most(outcome.times())
    return {
        "seed": outcome.seed,
        "seconds": round(outcome.seconds, 1),
        "faults": len(outcome.harmed),
        "faults_by_kind": {
            f"{kind} {role}": len(times) for (kind, role), times in _by_kind(outcome).items()
        },
        "accepted": outcome.accepted,
        "ended": outcome.ended,
        "lost": outcome.lost,
        "doubled": outcome.doubled,
        "repeated": outcome.repeated,
        "breaches": outcome.breaches,
        "buried": outcome.buried,
        "misled": outcome.misled,
        "cut_off": outcome.cut_off,
        "not_cut": list(outcome.not_cut),
        "silent": outcome.silent,
        "hosted": asdict(outcome.hosted),
        "boxes": asdict(outcome.boxes),
        "training": asdict(outcome.training),
        "recovery_p50_s": p50,
        "recovery_max_s": longest,
        "ended_by_themselves": {name: list(codes) for name, codes in outcome.fell.items()},
        "ok": outcome.ok,
    }


def table(outcome: ChaosOutcome) -> Table:
    """Return the faults by kind with their times to progress, then the rollouts."""
    faults = Table("fault", "of", "times", "progress p50", "max")
    for column in (2, 3, 4):
        faults.columns[column].justify = "right"
    for (kind, role), times in _by_kind(outcome).items():
        faults.add_row(kind, role, f"{len(times)}", *_seconds(times))
    faults.add_section()
    all_times = [took for _, took in outcome.harmed]
    faults.add_row("all", "", f"{len(all_times):,}", *_seconds(all_times))
    faults.add_section()
    rows = {
        "rollouts accepted": outcome.accepted,
        "rollouts ended": outcome.ended,
        "lost": outcome.lost,
        "doubled": outcome.doubled,
        "breaches": outcome.breaches,
        "silent": outcome.silent,
        "buried as dead letters": outcome.buried,
        "answers with wrong schema ids": outcome.misled,
        "partitions whose end was cut off": outcome.cut_off,
        "external work repeated": outcome.repeated,
        **_hosted_rows(outcome.hosted),
        **_box_rows(outcome.boxes),
        **_training_rows(outcome.training),
    }
    if outcome.fell:
        rows["ended by themselves"] = sum(map(len, outcome.fell.values()))
    for what, count in rows.items():
        faults.add_row(what, "", f"{count:,}", "", "")
    return faults


def _hosted_rows(hosted: HostedFigures) -> dict[str, int]:
    """Return the rows of hosted rollouts; none without such rollouts."""
    rows = {
        "hosted rollouts": hosted.rollouts,
        "their processes restarted": hosted.restarts,
        "their sessions moved": hosted.moved,
        "attempts lost as they diverged": hosted.diverged,
        "answered asks called again": hosted.asked_again,
    }
    return rows if hosted.rollouts else {}


def _box_rows(boxes: BoxFigures) -> dict[str, int]:
    """Return the rows of rollouts in shells; none without such rollouts."""
    rows = {
        "rollouts in a shell": boxes.rollouts,
        "boxes killed": boxes.killed,
        "commands whose box died": boxes.died,
        "of these tried again": boxes.again,
        "rollouts given up": boxes.given_up,
        "shells gone wrong": boxes.wrong,
        "boxes left": boxes.boxes_left,
        "leases left": boxes.leases_left,
    }
    return rows if boxes.rollouts else {}


def _training_rows(training: TrainingFigures) -> dict[str, int]:
    """Return the rows of the training run; none without one."""
    rows = {
        "train steps": training.steps,
        "versions abandoned": training.abandoned,
        "checkpoints with another digest": training.wrong_digest,
        "checkpoints damaged": training.damaged,
        "steps trained again": training.trained_again,
        "of these with other bits": training.differing,
    }
    return rows if training.steps else {}


def _by_kind(outcome: ChaosOutcome) -> dict[tuple[str, str], list[float | None]]:
    """Return the times to progress by kind and role, in the roles' order."""
    times: dict[tuple[str, str], list[float | None]] = {}
    for fault, took in outcome.harmed:
        times.setdefault((fault.kind, fault.role), []).append(took)
    return dict(sorted(times.items(), key=lambda item: (ROLES.index(item[0][1]), item[0][0])))


def _seconds(times: Iterable[float | None]) -> tuple[str, str]:
    figures = _middle_and_most([took for took in times if took is not None])
    return tuple("-" if each is None else f"{each:.1f} s" for each in figures)  # type: ignore[return-value]


def _middle_and_most(times: Sequence[float]) -> tuple[float | None, float | None]:
    if not times:
        return None, None
    return round(statistics.median(times), 3), round(max(times), 3)
