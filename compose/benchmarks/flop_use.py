"""Arithmetic of an optimiser step of a billion parameters on a GPU, against a matrix product.

The figure is the necessary arithmetic of the model, over the time of the quickest step: for each
token of each row 6 operations per parameter, and 6 times layers times width times the tokens of its
row for attention, of which half is masked (forward once, backward twice). Embeddings count, as they
are also the last layer's weights. Recomputation to save memory does not count, nor do parts that
rows share and that are computed once. The ceiling is a square product of bfloat16 matrices in the
same process.
"""

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rollcall.compose.benchmarks.figure import BenchmarkUnavailable, Figure
from rollcall.compose.benchmarks.one_trainer import LR, Shape, samples_of
from rollcall.compose.extras import require
from rollcall.compose.settings import Settings

LLAMA = {
    "vocab_size": 32_000, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}  # fmt: skip
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
        lr=LR, entropy=0.0, advantage="grpo", packing=packing, precision="bfloat16",
        groups_per_step=SHAPE.groups, group_size=SHAPE.answers,
    )  # fmt: skip
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
