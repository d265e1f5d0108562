"""Retraining of steps by as many processes as trained them: this one is rank 0.

`python -m rollcall.compose.workers.retraining_ranks DIRECTORY THREADS RANK COUNT MEETING` is one of
the others. It prints a line before it joins them, so that rank 0 does not wait for one that has
ended; then it follows rank 0, and ends with it in any case.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rollcall.compose.processes import die_with_parent, module
from rollcall.schemas.errors import RollcallError, Unfit

if TYPE_CHECKING:
    from rollcall.consumers.history.runs.retraining import RetrainingPlan
    from rollcall.consumers.history.runs.training_record import TrainedRun
    from rollcall.trainer.learner.ranks import ProcessRanks
    from rollcall.trainer.learner.sharded_learner import ShardedLearner
    from rollcall.trainer.learner.step import Learner

LEAVE_S = 30.0
"""The time that a rank may take to end after it was released."""
FAILED = 1


@contextmanager
def learner_of(plan: "RetrainingPlan", threads: int) -> Iterator["Learner"]:
    """Yield a learner at the start of a plan, with as many processes as trained its steps.

    Each has `threads` threads. Raises Unfit if one cannot begin; it has logged the reason.
    """
    if plan.ranks == 1:
        yield plan.learner(plan.run.config)
        return
    with _ranks(plan.run, threads, plan.ranks) as ranks:
        learner = _sharded(plan.run, ranks)
        learner.load(plan.start.state)
        yield learner
        learner.end()


@contextmanager
def _ranks(run: "TrainedRun", threads: int, count: int) -> Iterator["ProcessRanks"]:
    """Yield this process's ranks among `count`; the others have ended afterwards."""
    from rollcall.trainer.learner.ranks import ProcessRanks

    with TemporaryDirectory(prefix="rollcall-ranks-") as scratch:
        meeting = f"file://{scratch}/meeting"
        others = [_other(run.directory, threads, rank, count, meeting) for rank in range(1, count)]
        try:
            for rank, other in enumerate(others, 1):
                _await(other, rank, count)
            ranks = ProcessRanks.join("cpu", meeting, 0, count)
            try:
                yield ranks
            finally:
                ranks.leave()
            for other in others:
                with suppress(subprocess.TimeoutExpired):
                    other.wait(LEAVE_S)
        finally:
            for other in others:
                with other:  # closes its line, and waits for it
                    other.kill()


def _other(
    directory: Path, threads: int, rank: int, count: int, meeting: str
) -> "subprocess.Popen[bytes]":
    words = (str(directory), str(threads), str(rank), str(count), meeting)
    return subprocess.Popen(
        module("rollcall.compose.workers.retraining_ranks", *words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        preexec_fn=die_with_parent,
    )


def _await(other: "subprocess.Popen[bytes]", rank: int, count: int) -> None:
    if other.stdout is None or not other.stdout.readline():
        msg = (
            f"rank {rank} of {count} has ended before it met the others (exit code "
            f"{other.wait()}); it takes {count} processes with the run's policy in memory to train "
            "its steps again; see what that one said"
        )
        raise Unfit(msg)


def _sharded(run: "TrainedRun", ranks: "ProcessRanks") -> "ShardedLearner":
    from rollcall.trainer.learner.sharded_learner import ShardedLearner
    from rollcall.trainer.weights.weights_files import of_version

    return ShardedLearner(str(run.policy), run.config, ranks, past=partial(of_version, run.weights))


def main(directory: str, threads: str, rank: str, count: str, meeting: str) -> int:
    """Run one of the other ranks; return the exit code."""
    from rollcall.compose.runs import run_folder

    try:
        # Before seconds are spent on libraries: a run that cannot be read ends this process.
        run = run_folder.load(Path(directory)).trained()

        import torch
        from transformers.utils.logging import disable_progress_bar

        from rollcall.trainer.learner.ranks import ProcessRanks

        disable_progress_bar()
        torch.set_num_threads(int(threads))
        with os.fdopen(os.dup(1), "w") as line:
            os.dup2(2, 1)  # output of libraries goes to stderr
            line.write("ready\n")
        ranks = ProcessRanks.join("cpu", meeting, int(rank), int(count))
        _sharded(run, ranks).follow()
        ranks.leave()
    except RollcallError as error:
        print(f"rank {rank}: {error}", file=sys.stderr)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
