"""Steps trained again by as many processes as have trained them: this one is rank 0.

`python -m compose.workers.retraining_ranks DIRECTORY THREADS RANK COUNT MEETING` is one of the
others. It says a line when it is about to meet them, so that nobody waits for one that has ended;
then it does what rank 0 is asked for, and ends with it, whatever ends that.
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

from compose.processes import die_with_parent, module
from schemas.errors import RollcallError, Unfit

if TYPE_CHECKING:
    from consumers.history.retraining import RetrainingPlan
    from consumers.history.training_record import TrainedRun
    from trainer.ranks import ProcessRanks
    from trainer.sharded_learner import ShardedLearner
    from trainer.step import Learner

LEAVE_S = 30.0
"""How long a rank may take to end once it was let go."""
FAILED = 1


@contextmanager
def learner_of(plan: "RetrainingPlan", threads: int) -> Iterator["Learner"]:
    """A learner that stands where a plan begins, of as many processes as trained its steps.

    Each has so many threads. Raises Unfit where one of them cannot begin; it has said why.
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
    """This process among so many; the others are gone afterwards."""
    from trainer.ranks import ProcessRanks

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
        module("compose.workers.retraining_ranks", *words),
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
    from trainer.sharded_learner import ShardedLearner
    from trainer.weights_files import of_version

    return ShardedLearner(str(run.policy), run.config, ranks, past=partial(of_version, run.weights))


def main(directory: str, threads: str, rank: str, count: str, meeting: str) -> int:
    """Be one of the others; the exit code."""
    import torch
    from transformers.utils.logging import disable_progress_bar

    from compose.runs import run_folder
    from trainer.ranks import ProcessRanks

    disable_progress_bar()
    torch.set_num_threads(int(threads))
    try:
        run = run_folder.load(Path(directory)).trained()
        with os.fdopen(os.dup(1), "w") as line:
            os.dup2(2, 1)  # what libraries print is for people
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
