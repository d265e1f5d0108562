"""`rollcall chaos`: a workload with faults; then an audit of the log."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from rollcall.compose.chaos import workload
from rollcall.compose.chaos.boxes import box_figures, boxes_left
from rollcall.compose.chaos.cut_log import LogVictim
from rollcall.compose.chaos.experiment import Conductor
from rollcall.compose.chaos.faults import LOG
from rollcall.compose.chaos.hosted_figures import figures_of
from rollcall.compose.chaos.outcome import ChaosOutcome, plain, table
from rollcall.compose.chaos.plan import ChaosPlan
from rollcall.compose.chaos.stage import Stage, no_namespaces, refuse_no_boxes, staged
from rollcall.compose.chaos.training_figures import TrainingFigures
from rollcall.compose.conductor.conductor import Stopped, interruptible
from rollcall.compose.files import refuse_no_folder, write_json
from rollcall.compose.log_setup import set_up
from rollcall.compose.pages.audit_page import audit_with_bar, print_report
from rollcall.compose.settings import Settings
from rollcall.consumers.audit.report import Report
from rollcall.schemas.atomic_files import require_unused

WHERE = "the log is in {0}/services, the workers' logs are in {0}/logs"


def run_chaos(
    settings: Settings, plan: ChaosPlan, *, json: Path | None, keep: Path | None, terminal: Console
) -> bool:
    """Run it all and print the table; True if nothing was lost, doubled or breached."""
    refuse_no_folder(json)
    refuse_no_boxes(plan)
    with interruptible() as check, _directory(keep, terminal) as directory:
        with (directory / "conductor.log").open("a") as log:
            set_up("conductor", "conductor", log)
            others = f", half of the workers of {plan.beside.name}" if plan.beside else ""
            beginning = (
                f"seed {plan.seed}, session timeout {plan.session_s:g} s{others}, in {directory}"
            )
            terminal.print(beginning, highlight=False, soft_wrap=True)
            outcome, report = _conduct(plan, settings, directory, terminal, check)
        terminal.print(table(outcome))
        print_report(report, terminal)
        if json is not None:
            write_json(json, plain(outcome))
        if not outcome.ok:
            terminal.print(WHERE.format(directory), soft_wrap=True)
        elif keep is None:
            shutil.rmtree(directory)
    return outcome.ok


@contextmanager
def _directory(keep: Path | None, terminal: Console) -> Iterator[Path]:
    """Yield a state directory; a temporary one is removed when the run is interrupted."""
    if keep is None:
        directory = Path(tempfile.mkdtemp(prefix="rollcall-chaos-"))
    else:
        require_unused(keep, "--keep")
        directory = keep.absolute()
        directory.mkdir(parents=True, exist_ok=True)
    try:
        yield directory
    except Stopped:
        if keep is None:
            shutil.rmtree(directory)
        raise
    except Exception:
        terminal.print(WHERE.format(directory), soft_wrap=True)
        raise


def _conduct(
    plan: ChaosPlan,
    settings: Settings,
    directory: Path,
    terminal: Console,
    check: Callable[[], None],
) -> tuple[ChaosOutcome, Report]:
    """Run the plan; leaves no process and no box behind."""
    began = time.monotonic()
    with staged(plan, settings, directory) as stage:
        _say_boxes(stage, terminal)
        conductor = Conductor(stage, terminal, check)
        try:
            conductor.run()
        finally:
            conductor.close()
        most = conductor.most_repeated()
        report = audit_with_bar(stage.cluster, terminal, drained=True, most_repeated=most)
        hosted = figures_of(stage.cluster, workload.POLICY, stage.logs)
        left = boxes_left(conductor.leases, stage.engine)
        boxes = box_figures(stage.cluster, conductor.boxes.killed, left)
        training = _judged_training(stage, terminal)
    _say_log(plan, conductor.log, terminal)
    accepted_unseen = max(0, len(conductor.watch.asked) - report.accepted)
    outcome = ChaosOutcome(
        seed=plan.seed,
        harmed=[(each.fault, each.took_s) for each in conductor.watch.progress],
        accepted=report.accepted,
        ended=report.ended,
        lost=report.lost + accepted_unseen,
        doubled=report.doubled,
        repeated=report.repeated,
        breaches=report.found.total(),
        misled=sum(each.told for each in conductor.registries.values()),
        cut_off=conductor.log.cuts,
        not_cut=conductor.log.not_cut,
        # The other release may send records that only ours reads to the dead letters.
        buried=0 if plan.beside else report.dead_letters,
        silent=len(conductor.stranger.unnamed) + len(conductor.log.unnamed),
        seconds=time.monotonic() - began,
        fell={worker.name: worker.fell for worker in conductor.workers if worker.fell},
        hosted=hosted,
        boxes=boxes,
        training=training,
    )
    return outcome, report


def _judged_training(stage: Stage, terminal: Console) -> TrainingFigures:
    """Compare the results of the killed trainers with those of an undisturbed one.

    Steps that two releases took in turn are not compared, as their arithmetic may differ.
    """
    if stage.run is None or stage.plan.beside is not None:
        return TrainingFigures()
    from rollcall.compose.chaos.retraining_figures import figures_of_run  # torch, and only now

    terminal.print("training again what was trained, without any fault", highlight=False)
    threads = stage.cluster.settings.training.threads
    return figures_of_run(stage.cluster, stage.run.trained(), threads)


def _say_log(plan: ChaosPlan, victim: LogVictim, terminal: Console) -> None:
    """Print the cuts that no worker reported, and if planned cuts were not made."""
    for place in victim.unnamed:
        terminal.print(f"no worker named what was cut off of {place}", highlight=False)
    if LOG in plan.roles and plan.hosts and not victim.cuts:
        why = "; ".join(victim.not_cut) or "the time was over before a cut could begin"
        said = f"the log was not cut, so nothing is said of it: {why}"
        terminal.print(said, highlight=False, soft_wrap=True)


def _say_boxes(stage: Stage, terminal: Console) -> None:
    """Print the drivers of the workload's shells, and the victims that are missing here."""
    names = [each["box"] for each in stage.boxes]
    if names:
        terminal.print(f"shells are in boxes of {' and '.join(names)}", highlight=False)
    if names == ["local"]:
        why = f"no box is killed: a directory has no first process, and {no_namespaces()}"
        terminal.print(why, highlight=False, soft_wrap=True)
