"""A trainer of several processes: torchrun starts them, rank 0 reads the log, others follow it.

The supervisor sees one process, torchrun. It ends all ranks and itself when one of them dies; then
it is restarted from the checkpoint.

GNU's OpenMP reads its settings when torch is imported: set them with `share_cores` before that.
"""

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rollcall.compose.processes import die_with_parent, module
from rollcall.schemas.errors import Refused

if TYPE_CHECKING:
    from rollcall.compose.runs.run_folder import RunFolder
    from rollcall.compose.settings import TrainingSettings
    from rollcall.trainer.learner.ranks import ProcessRanks, Ranks
    from rollcall.trainer.learner.sharded_learner import ShardedLearner

BEGIN, LEAVE = b"begin", b"leave"


def begun_by_torchrun() -> bool:
    """Return True if this process is already a rank."""
    from torch.distributed import is_torchelastic_launched

    return bool(is_torchelastic_launched())


def become_ranks(count: int, *arguments: str) -> NoReturn:
    """Replace this process by torchrun, which runs `count` ranks of `rollcall` on this host."""
    torchrun = module(
        "torch.distributed.run",
        "--standalone",
        "--local-addr",
        "127.0.0.1",
        f"--nproc-per-node={count}",
        "--no-python",
        "--",
        *module("rollcall.compose.cli", *arguments),
    )
    os.execv(sys.executable, torchrun)


def join(folder: "RunFolder", settings: "TrainingSettings") -> "ProcessRanks":
    """Join the other ranks; raises Refused, on all, if their number is not as configured."""
    import torch

    from rollcall.trainer.learner.ranks import ProcessRanks

    die_with_parent()
    torch.set_num_threads(settings.threads)
    ranks = ProcessRanks.join(settings.device)
    wanted = folder.learner().computation.ranks
    if ranks.count != wanted:
        msg = (
            f"rank {ranks.rank}: the job has {ranks.count} processes, but ranks of [learner] is "
            f"{wanted}; begin it with `rollcall worker training`"
        )
        raise Refused(msg)
    return ranks


def begins(ranks: "Ranks", ours: bool = False) -> bool:
    """Return True if there is anything to train; rank 0 decides (`ours`), the others receive it.

    A standby that was told to stop reads nothing, as another trainer still writes there.
    """
    return ranks.broadcast(BEGIN if ours else LEAVE) == BEGIN


def sharded(
    folder: "RunFolder", settings: "TrainingSettings", ranks: "ProcessRanks"
) -> "ShardedLearner":
    """Make this rank's part of a run's learner. Raises Refused, on all, if two disagree."""
    from functools import partial

    from rollcall.trainer.learner.sharded_learner import ShardedLearner
    from rollcall.trainer.weights.weights_files import of_version

    run = folder.run()
    past = partial(of_version, run.weights)
    device = settings.device
    if device == "cuda":
        device = f"cuda:{ranks.rank}"
    learner = ShardedLearner(str(folder.policy), folder.learner(), ranks, device=device, past=past)
    # All ranks have joined, rank 0 holds the run's lock: no other process writes checkpoints.
    require_same_checkpoint(ranks, run.checkpoints)
    return learner


def require_same_checkpoint(ranks: "Ranks", root: Path) -> None:
    """Raise Refused, on all ranks, if one sees another newest checkpoint than rank 0.

    Rank 0 alone loads one and sends it; a rank that sees another one reads another folder.
    """
    from rollcall.trainer.checkpoints.checkpoint import newest_words
    from rollcall.trainer.learner.ranks import require_alike

    require_alike(ranks, {"newest checkpoint": newest_words(root)})


def follow(folder: "RunFolder", settings: "TrainingSettings", ranks: "ProcessRanks") -> None:
    """Run a rank other than 0 until rank 0 tells it to leave."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    if begins(ranks):
        sharded(folder, settings, ranks).follow()
    ranks.leave()


SETTING = {"GOMP_SPINCOUNT": "10000"}
"""A spin of some 30 us: longer than most waits within a step, so these do not get slower."""


def share_cores() -> None:
    """Have waiting threads of GNU's OpenMP sleep after a short spin, unless already set otherwise.

    By default they spin for milliseconds. If another task, such as saving the step before, takes
    one thread's core, the other threads then waste their cores spinning for it; asleep, they free
    them. Source: libgomp's manual, GOMP_SPINCOUNT.
    """
    for name, value in SETTING.items():
        os.environ.setdefault(name, value)
