"""A process that takes optimiser steps on one fake batch, on request.

`python -m rollcall.compose.benchmarks.one_trainer WHO DIRECTORY GROUPS ANSWERS PROMPT ANSWER`: WHO
is `shared` or `rows`, our learner with that packing, or `trl`, its GRPO trainer. Each line of
standard input starts one step, each line of standard output is its measurement, as JSON.
"""

import atexit
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from rollcall.schemas.messages import RolloutRequest, ScoredTrajectory, Sequence, Task, Trajectory
from rollcall.schemas.packed import pack_ids, pack_logprobs
from rollcall.trainer.rules.samples import Sample

if TYPE_CHECKING:
    from rollcall.trainer.learner.step import Learner

Step = Callable[[], object]
LR = 1e-6
LOGPROB = -5.0


@dataclass(frozen=True, slots=True)
class Shape:
    """The number of groups, answers of each, tokens of a prompt and tokens of an answer."""

    groups: int
    answers: int
    prompt: int
    answer: int

    @property
    def tokens(self) -> int:
        """The tokens of all rows; a prompt counts once per answer."""
        return self.groups * self.answers * (self.prompt + self.answer)


@dataclass(frozen=True, slots=True)
class StepTime:
    wall_s: float
    cpu_s: float
    peak_bytes: int
    """The peak memory of the process so far."""


def rows(shape: Shape, vocabulary: int) -> Iterator[tuple[NDArray[Any], NDArray[Any], float]]:
    """Yield the same batch for all trainers: prompt, answer, and reward."""
    random = np.random.default_rng(7)
    for _ in range(shape.groups):
        prompt = random.integers(0, vocabulary, shape.prompt)
        for number in range(shape.answers):
            yield prompt, random.integers(0, vocabulary, shape.answer), float(number % 2)


def ours(directory: str, shape: Shape, packing: str) -> Step:
    learner, samples = learner_and_samples(directory, shape, packing)
    return partial(learner.step, samples)


def learner_and_samples(
    directory: str, shape: Shape, packing: str
) -> "tuple[Learner, list[Sample]]":
    """Make a learner with the learning rate of language models, and the batch."""
    from rollcall.trainer.config.learner_config import LearnerConfig
    from rollcall.trainer.learner.step import Learner

    config = LearnerConfig(
        lr=LR,
        entropy=0.0,
        advantage="grpo",
        packing=packing,
        groups_per_step=shape.groups,
        group_size=shape.answers,
    )
    learner = Learner(directory, config)
    return learner, samples_of(shape, learner.vocabulary)


def samples_of(shape: Shape, vocabulary: int) -> list[Sample]:
    """Return the batch in the form of the trainer's buffer."""
    return [
        _sample(number, number // shape.answers, *row)
        for number, row in enumerate(rows(shape, vocabulary))
    ]


def _sample(
    number: int, group: int, prompt: NDArray[Any], answer: NDArray[Any], reward: float
) -> Sample:
    request = RolloutRequest(str(number), Task(), group_id=f"g{group}")
    scored = scored_row(request, "policy", prompt, answer, reward)
    return Sample(scored, 0, number, 0, reward, 0, len(answer))


def scored_row(
    request: RolloutRequest,
    policy_id: str,
    prompt: NDArray[Any],
    answer: NDArray[Any],
    reward: float,
    version: int = 0,
) -> ScoredTrajectory:
    """Return a scored rollout of one turn."""
    mask = [0] * len(prompt) + [1] * len(answer)
    sequence = Sequence(
        token_ids=pack_ids([*prompt.tolist(), *answer.tolist()]),
        loss_mask=bytes(mask),
        behaviour_logprobs=pack_logprobs([LOGPROB * sampled for sampled in mask]),
        versions=pack_ids([version if sampled else -1 for sampled in mask]),
        policy_index=bytes(0 if sampled else 255 for sampled in mask),
        messages=(),
        provenance="missing",
    )
    rollout_id = request.rollout_id
    head = rollout_id, 0, "finished", request, (policy_id,), (sequence,), ()
    trajectory = Trajectory(*head, 0, len(answer), 0, 0, 0, 0, 0, 0)
    return ScoredTrajectory("scoring", trajectory, (), reward, "trajectories", 0, 0)


def trl(directory: str, shape: Shape) -> Step:
    """Return a step of TRL: its trainer's loss, gradient and update, in float32, uncheckpointed."""
    trainer = _grpo_trainer(directory, shape)
    optimiser = trainer.create_optimizer()
    inputs = _grpo_inputs(shape, int(trainer.model.config.vocab_size))
    trainer.model.train()

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        trainer.compute_loss(trainer.model, dict(inputs)).backward()
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        optimiser.step()

    return step


def _grpo_trainer(directory: str, shape: Shape) -> Any:
    """Make TRL's trainer, in float32; its files are removed when this process ends."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    count = shape.groups * shape.answers
    model = AutoModelForCausalLM.from_pretrained(
        directory, local_files_only=True, dtype=torch.float32
    )
    scratch = tempfile.mkdtemp(prefix="rollcall-trl-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    config = GRPOConfig(
        output_dir=scratch,
        per_device_train_batch_size=count,
        num_generations=shape.answers,
        max_completion_length=shape.answer,
        learning_rate=LR,
        loss_type="bnpo",
        epsilon_high=0.28,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[lambda completions, **_: [0.0] * len(completions)],
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "a"}] * count),
    )
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def _grpo_inputs(shape: Shape, vocabulary: int) -> dict[str, torch.Tensor]:
    """Return the batch of `rows` in the form of `compute_loss`."""
    made = list(rows(shape, vocabulary))
    prompts = torch.from_numpy(np.stack([prompt for prompt, _, _ in made]))
    answers = torch.from_numpy(np.stack([answer for _, answer, _ in made]))
    rewards = torch.tensor([reward for _, _, reward in made]).view(shape.groups, shape.answers)
    centred = rewards - rewards.mean(1, keepdim=True)
    return {
        "prompt_ids": prompts,
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": answers,
        "completion_mask": torch.ones_like(answers),
        "advantages": (centred / (rewards.std(1, keepdim=True) + 1e-4)).flatten(),
        "old_per_token_logps": torch.full(answers.shape, LOGPROB),
        "num_items_in_batch": torch.tensor(answers.numel()),
    }


def measured(step: Step) -> StepTime:
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return StepTime(wall, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def main(who: str, directory: str, *sizes: str) -> None:
    shape = Shape(*map(int, sizes))
    torch.set_num_threads(1)  # so that CPU time equals wall time on an idle machine
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output of libraries goes to stderr, not among the results
    step = trl(directory, shape) if who == "trl" else ours(directory, shape, who)
    for _ in sys.stdin:
        out.write(json.dumps(asdict(measured(step))) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
