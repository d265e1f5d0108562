"""The speed of an optimiser step: tokens per second of a core, and arithmetic of a GPU.

`train_tokens_per_s` compares with the same step of TRL's GRPO trainer: one batch, three processes
(`compose/benchmarks/one_trainer.py`): our learner with shared prefixes computed once, with separate
rows, and TRL. They run one after the other, since each holds gigabytes; the CPU time of the
quickest step on one thread counts, and all tokens of all rows, shared or not. If TRL is not
installed, the ceiling is our separate rows, and a note says so.

`train_flops` is the necessary arithmetic of a model of a billion parameters, over the time of the
quickest step: for each token of each row 6 operations per parameter, and 6 times layers times width
times the tokens of its row for attention, of which half is masked (forward once, backward twice).
Embeddings count, as they are also the last layer's weights. Recomputation to save memory does not
count, nor do parts that rows share and that are computed once. The ceiling is a square product of
bfloat16 matrices in the same process.
"""

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rollcall.compose.benchmarks.figure import BenchmarkUnavailable, Figure
from rollcall.compose.benchmarks.one_trainer import LR, Shape, StepTime, samples_of
from rollcall.compose.benchmarks.requirements import language_model
from rollcall.compose.extras import require
from rollcall.compose.processes import module
from rollcall.compose.runs.recipe import load_recipe
from rollcall.compose.runs.starting_policy import lay_policy
from rollcall.compose.settings import Settings
from rollcall.sandbox.package_index import last_error
from rollcall.schemas.errors import WorkFailed

LLAMA = {
    "vocab_size": 32_000,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
"""A configuration of 1.04 billion parameters."""
SHAPE = Shape(groups=4, answers=8, prompt=512, answer=1536)
STEPS = 3
SIDE, PRODUCTS = 8192, 20


def train_flops(settings: Settings, packing: str = "rows") -> Figure:
    """Measure operations per second of a step in bfloat16; raises LeftOut without a GPU."""
    require("torch", "transformers")
    import torch

    if not torch.cuda.is_available():
        msg = "no CUDA device is here; run it on a machine with a GPU"
        raise BenchmarkUnavailable(msg)
    with TemporaryDirectory(prefix="rollcall-") as scratch:
        parameters = _lay_model(Path(scratch))
        walls = _steps(scratch, packing)
    a_token = 6 * parameters + 6 * _attention(SHAPE.prompt + SHAPE.answer)
    value, ceiling = a_token * SHAPE.tokens / min(walls), _product()
    note = (
        f"{torch.cuda.get_device_name()}: {parameters / 1e9:.2f} billion parameters, "
        f"{SHAPE.tokens:,} tokens in {SHAPE.groups * SHAPE.answers} rows, packing {packing}, "
        f"{min(walls):.2f} to {max(walls):.2f} s a step, {SHAPE.tokens / min(walls):,.0f} tokens/s,"
        f" {torch.cuda.max_memory_allocated() / 1e9:.1f} GB of its memory at most"
    )
    return Figure(value / 1e12, "TFLOP/s", ceiling / 1e12, notes=(note,))


def _attention(length: int) -> int:
    """Return a token's products with the visible half of its row, and their sums: all layers."""
    return int(LLAMA["num_hidden_layers"] * LLAMA["hidden_size"] * length)


def _lay_model(directory: Path) -> int:
    """Write random weights; return the number of parameters."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    with torch.device("cuda"):
        model = LlamaForCausalLM(LlamaConfig(**LLAMA))
    model.save_pretrained(directory)
    return sum(each.numel() for each in model.parameters())


def _steps(directory: str, packing: str) -> list[float]:
    """Return the seconds of each step except the first."""
    from rollcall.trainer.config.learner_config import LearnerConfig
    from rollcall.trainer.learner.step import Learner

    config = LearnerConfig(
        lr=LR,
        entropy=0.0,
        advantage="grpo",
        packing=packing,
        precision="bfloat16",
        groups_per_step=SHAPE.groups,
        group_size=SHAPE.answers,
    )
    learner = Learner(directory, config, device="cuda")
    samples = samples_of(SHAPE, learner.vocabulary)
    return [_timed(lambda: learner.step(samples)) for _ in range(STEPS + 1)][1:]


def _product() -> float:
    """Measure operations per second of a square product of bfloat16 matrices."""
    import torch

    left = torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16)
    right = torch.randn_like(left)

    def products() -> None:
        for _ in range(PRODUCTS):
            left @ right

    return PRODUCTS * 2 * SIDE**3 / min(_timed(products) for _ in range(3))


def _timed(work: Any) -> float:
    """Return the seconds until the device has finished the work."""
    import torch

    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began


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
        words,
        input="step\n" * (turns + 1),
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode:
        msg = f"{who} takes no step: {last_error(done.stderr)}"
        raise WorkFailed("no_step", msg, retriable=False)
    return [StepTime(**json.loads(line)) for line in done.stdout.splitlines()][1:]
