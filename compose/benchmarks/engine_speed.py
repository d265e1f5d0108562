"""Tokens per second of the transformers engine, against a batched `generate` of the same model.

The real models worker on the in-memory log gets a batch of calls at once and answers them all:
calls are read, rendered, sampled, and their answers encoded and written. The ceiling is the model's
own `generate`, which samples as many tokens after as many prompts of the same length. The two
alternate, one thread each, and the CPU time of the quickest round counts, as the machine may be
shared.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from rollcall.compose.benchmarks.figure import Figure
from rollcall.compose.benchmarks.one_server import OneServer, announced, call_of
from rollcall.compose.extras import require
from rollcall.compose.runs.recipe import load_recipe
from rollcall.compose.runs.starting_policy import lay_policy
from rollcall.compose.settings import Settings
from rollcall.schemas.messages import Message, ModelCall

if TYPE_CHECKING:
    from torch import Tensor

ROUNDS = 4
LLAMA = {
    "model_type": "llama",
    "vocab_size": 8192,
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "eos_token_id": None,
}
"""A model of 20 million parameters, so that arithmetic dominates a step of a batch."""
WORDS = {"kind": "words", "bos": "<bos>", "turn": "<a>"}


@dataclass(frozen=True, slots=True)
class CallBatch:
    """The number of calls at once, words of a prompt and tokens of an answer."""

    calls: int
    prompt: int
    answer: int

    @property
    def tokens(self) -> int:
        """The number of sampled tokens."""
        return self.calls * self.answer


@dataclass(frozen=True, slots=True)
class Round:
    """The times of sampling one batch."""

    cpu_s: float
    wall_s: float


LANGUAGE = CallBatch(calls=32, prompt=30, answer=64)
LAKE = CallBatch(calls=64, prompt=1, answer=32)


def engine_tokens_per_s(settings: Settings, batch: CallBatch = LANGUAGE) -> Figure:
    """Measure a model that is made here, with random weights."""
    require("torch", "transformers")
    from rollcall.inference.policy_dir import make_policy

    with TemporaryDirectory(prefix="rollcall-") as scratch:
        made = make_policy(
            Path(scratch) / "llama", config=LLAMA, tokens="lake", template=WORDS, seed=7
        )
        return compared(made, settings, batch)


def engine_tokens_per_s_lake(settings: Settings) -> Figure:
    """Measure the demo's policy, whose steps are so short that overhead dominates."""
    require("torch", "transformers")
    with TemporaryDirectory(prefix="rollcall-") as scratch:
        directory = Path(scratch) / "lake"
        lay_policy(load_recipe("lake-any-start")[0].policy, directory, seed=7)
        return compared(directory, settings, LAKE)


def compared(directory: Path, settings: Settings, batch: CallBatch, rounds: int = ROUNDS) -> Figure:
    """Measure both alternately, after an uncounted round of each."""
    with TemporaryDirectory(prefix="rollcall-") as scratch:
        worker = Worker(directory, Path(scratch), settings)
        model = worker.engine.policy.model
        taken: dict[str, list[Round]] = {"worker": [], "generate": []}
        for number in range(rounds + 1):
            worker.send(calls_of(batch, number))
            taken["worker"].append(measured(worker.answer))
            ids = prompts_of(worker.engine.policy.template, batch, number)
            taken["generate"].append(measured(partial(generate, model, ids, batch.answer)))
        worker.loop.stop(0.0)
    return figure(batch, {who: times[1:] for who, times in taken.items()})


def figure(batch: CallBatch, taken: dict[str, list[Round]]) -> Figure:
    """Return the figure of the quickest rounds, by CPU seconds."""
    speed = {who: batch.tokens / min(each.cpu_s for each in times) for who, times in taken.items()}
    notes = tuple(
        f"{who}: {speed[who]:,.0f} tokens/s of CPU, "
        f"{batch.tokens / min(each.wall_s for each in times):,.0f} by the clock; "
        f"{batch.calls} at once, {batch.answer} tokens each"
        for who, times in taken.items()
    )
    return Figure(speed["worker"], "tokens/s", speed["generate"], notes=notes)


def measured(work: Callable[[], object]) -> Round:
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return Round(time.process_time() - cpu, time.perf_counter() - wall)


class Worker(OneServer):
    """A server of version 0, on one thread."""

    def __init__(self, directory: Path, scratch: Path, settings: Settings) -> None:
        from rollcall.trainer.config.learner_config import LearnerConfig
        from rollcall.trainer.learner.step import Learner
        from rollcall.trainer.weights.publication import Publication, Publishing

        super().__init__(directory, settings, threads=1)
        learner = Learner(str(directory), LearnerConfig())
        published = Publication(str(scratch), Publishing()).write(0, learner.tensors())
        self.begin(announced(learner, 0, published))

    def answer(self) -> None:
        """Run until all calls on the log are answered."""
        self.loop.turn(0.0)
        while self.at_work():
            self.loop.turn(0.0)


def calls_of(batch: CallBatch, number: int) -> list[ModelCall]:
    """Return calls of new rollouts."""
    said = enumerate(messages_of(batch, number))
    return [call_of(f"{number} {at}", message, batch.answer) for at, message in said]


def messages_of(batch: CallBatch, number: int) -> Sequence[Message]:
    """Return the prompts: places of the lake, drawn anew for every call."""
    random = np.random.default_rng(number)
    return [
        Message("user", " ".join(f"s{place}" for place in random.integers(0, 16, batch.prompt)))
        for _ in range(batch.calls)
    ]


def prompts_of(template: Any, batch: CallBatch, number: int) -> "Tensor":
    """Return the same calls, rendered."""
    import torch

    said = messages_of(batch, number)
    return torch.tensor([template.render((each,), first=True, ended=False) for each in said])


def generate(model: Any, ids: "Tensor", answer: int) -> "Tensor":
    """Sample with transformers' own `generate`; return prompts with answers, a row each."""
    import torch

    with torch.inference_mode():
        rows: Tensor = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_new_tokens=answer,
            max_new_tokens=answer,
            pad_token_id=0,
        )
    return rows
