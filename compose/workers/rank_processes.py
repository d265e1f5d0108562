"""A trainer that is several processes: torchrun begins them, rank 0 reads the log, others follow.

The supervisor knows one process, torchrun. It ends all ranks when one of them dies, and itself;
then it is begun again, from the checkpoint.
"""

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from compose.processes import die_with_parent, module
from schemas.errors import Refused

if TYPE_CHECKING:
    from compose.runs.run_folder import RunFolder
    from compose.settings import TrainingSettings
    from trainer.ranks import ProcessRanks, Ranks
    from trainer.sharded_learner import ShardedLearner

BEGIN, LEAVE = b"begin", b"leave"


def begun_by_torchrun() -> bool:
    """Whether this process is a rank already."""
    from torch.distributed import is_torchelastic_launched

    return bool(is_torchelastic_launched())


def become_ranks(count: int, *arguments: str) -> NoReturn:
    """Go on as torchrun, which runs `rollcall` with these arguments so many times on this host."""
    torchrun = module(
        "torch.distributed.run",
        "--standalone", "--local-addr", "127.0.0.1", f"--nproc-per-node={count}", "--no-python",
        "--", *module("compose.cli", *arguments),
    )  # fmt: skip
    os.execv(sys.executable, torchrun)


def join(folder: "RunFolder", settings: "TrainingSettings") -> "ProcessRanks":
    """Meet the other ranks; raises Refused, on all, where they are not as many as is said."""
    import torch

    from trainer.ranks import ProcessRanks

    die_with_parent()
    torch.set_num_threads(settings.threads)
    ranks = ProcessRanks.join(settings.device)
    wanted = folder.learner().ranks
    if ranks.count != wanted:
        msg = (
            f"rank {ranks.rank}: the job has {ranks.count} processes, but ranks of [learner] is "
            f"{wanted}; begin it with `rollcall worker training`"
        )
        raise Refused(msg)
    return ranks


def begins(ranks: "Ranks", ours: bool = False) -> bool:
    """Whether there is anything to train, as rank 0 says, whose word it is; the others hear it.

    What stood by until it was told to stop looks at nothing: another trainer writes there still.
    """
    return ranks.heard(BEGIN if ours else LEAVE) == BEGIN


def sharded(
    folder: "RunFolder", settings: "TrainingSettings", ranks: "ProcessRanks"
) -> "ShardedLearner":
    """This rank's part of a run's learner. Raises Refused, on all of them, where two disagree."""
    from functools import partial

    from trainer.sharded_learner import ShardedLearner
    from trainer.weights_files import of_version

    run = folder.run()
    past = partial(of_version, run.weights)
    device = settings.device
    if device == "cuda":
        device = f"cuda:{ranks.rank}"
    learner = ShardedLearner(str(folder.policy), folder.learner(), ranks, device=device, past=past)
    # All have met by now, rank 0 with the run's lock: nobody else writes checkpoints.
    require_same_checkpoint(ranks, run.checkpoints)
    return learner


def require_same_checkpoint(ranks: "Ranks", root: Path) -> None:
    """Raise Refused, on all ranks, where one sees another newest checkpoint than rank 0.

    Rank 0 alone loads one and tells the others; a rank that sees another one reads another folder.
    """
    from trainer.checkpoint import newest_words
    from trainer.ranks import require_alike

    require_alike(ranks, {"newest checkpoint": newest_words(root)})


def follow(folder: "RunFolder", settings: "TrainingSettings", ranks: "ProcessRanks") -> None:
    """What a rank other than 0 does while there is a trainer: rank 0 says when to leave."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    if begins(ranks):
        sharded(folder, settings, ranks).follow()
    ranks.leave()
