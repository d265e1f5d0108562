"""Tokens per second of a core in an optimiser step, against the same step of TRL's GRPO trainer.

One batch, three processes (`compose/benchmarks/one_trainer.py`): our learner with shared prefixes
computed once, with separate rows, and TRL. They run one after the other, since each holds
gigabytes; the CPU time of the quickest step on one thread counts, and all tokens of all rows,
shared or not. If TRL is not installed, the ceiling is our separate rows, and a note says so.
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from rollcall.compose.benchmarks.figure import Figure
from rollcall.compose.benchmarks.language_model import language_model
from rollcall.compose.benchmarks.one_trainer import Shape, StepTime
from rollcall.compose.extras import require
from rollcall.compose.processes import module
from rollcall.compose.runs.recipe import load_recipe
from rollcall.compose.runs.starting_policy import lay_policy
from rollcall.compose.settings import Settings
from rollcall.sandbox.package_index import last_error
from rollcall.schemas.errors import WorkFailed

LANGUAGE = Shape(groups=4, answers=4, prompt=64, answer=32)
LANGUAGE_8 = Shape(groups=2, answers=8, prompt=64, answer=32)
LAKE = Shape(groups=8, answers=8, prompt=9, answer=8)
TURNS = 2
WITHOUT_TRL = "TRL is not installed (`pip install 'rollcall[trl]'`): the ceiling is rows apart"


def train_tokens_per_s(settings: Settings, shape: Shape = LANGUAGE) -> Figure:
    """Measure the language model; raises LeftOut if it has not been fetched."""
    return compared(language_model(), shape, TURNS)


def train_tokens_per_s_lake(settings: Settings, turns: int = 20) -> Figure:
    """Measure the demo's policy, whose steps are so short that overhead dominates."""
    with TemporaryDirectory(prefix="rollcall-") as scratch:
        lay_policy(load_recipe("lake-any-start")[0].policy, Path(scratch) / "lake", seed=7)
        return compared(Path(scratch) / "lake", LAKE, turns)


def compared(directory: Path, shape: Shape, turns: int) -> Figure:
    require("torch", "transformers")
    has_trl = all(find_spec(name) is not None for name in ("trl", "datasets"))
    names = ["shared", "rows", *(["trl"] if has_trl else [])]
    return figure(shape, {name: steps_of(name, directory, shape, turns) for name in names})


def figure(shape: Shape, taken: Mapping[str, Sequence[StepTime]]) -> Figure:
    """Return the figure of the steps of each; those of "trl" are the ceiling if there are any."""
    speed = {name: shape.tokens / min(s.cpu_s for s in steps) for name, steps in taken.items()}
    notes = [
        f"{name}: {speed[name]:,.0f} tokens/s, {min(s.wall_s for s in steps):.2f} s a step here, "
        f"{max(s.peak_bytes for s in steps) / 1e9:.2f} GB at most"
        for name, steps in taken.items()
    ]
    if "trl" not in taken:
        notes.append(WITHOUT_TRL)
    ceiling = speed["trl" if "trl" in taken else "rows"]
    return Figure(speed["shared"], "tokens/s", ceiling, notes=tuple(notes))


def steps_of(who: str, directory: Path, shape: Shape, turns: int) -> list[StepTime]:
    """Return the steps of a new process without its first, which creates the optimiser state."""
    sizes = map(str, (shape.groups, shape.answers, shape.prompt, shape.answer))
    words = module("rollcall.compose.benchmarks.one_trainer", who, str(directory), *sizes)
    environment = {**os.environ, "TRL_EXPERIMENTAL_SILENCE": "1"}
    done = subprocess.run(
        words, input="step\n" * (turns + 1), capture_output=True, text=True, check=False,
        env=environment,
    )  # fmt: skip
    if done.returncode:
        msg = f"{who} takes no step: {last_error(done.stderr)}"
        raise WorkFailed("no_step", msg, retriable=False)
    return [StepTime(**json.loads(line)) for line in done.stdout.splitlines()][1:]
