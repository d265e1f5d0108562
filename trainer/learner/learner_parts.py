"""The parts of a learner: the model as it is loaded, and the parts that its state consists of."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rollcall.schemas.weights import RawTensor
from rollcall.trainer.checkpoints.learner_state import LearnerState
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner.arithmetic import compute_twice, on, require_precision
from rollcall.trainer.learner.auxiliary_models import AuxiliaryModels
from rollcall.trainer.learner.clipped_updates import ClippedUpdates
from rollcall.trainer.learner.entropy_control import EntropyControl
from rollcall.trainer.learner.exact import require_exact
from rollcall.trainer.learner.forward import loaded
from rollcall.trainer.weights.adapters import Adaptation
from rollcall.trainer.weights.tensors import load_tensors, raw_of, tensor_of, tensors_of


@dataclass(frozen=True, slots=True)
class LearnerParts:
    """The parts of a learner that the next step depends on, except step and version."""

    model: nn.Module
    adapted: Adaptation | None
    updates: ClippedUpdates
    auxiliary: AuxiliaryModels
    entropy: EntropyControl

    def copier(
        self, step: int, version: int, raw: Callable[[Tensor], RawTensor]
    ) -> Callable[[], LearnerState]:
        """Return a function that builds the state; it reads the large tensors when it is called."""
        skipped, entropy = self.updates.skipped, self.entropy.state()
        rng = {"torch": raw_of(torch.get_rng_state())}

        def copied() -> LearnerState:
            optimiser = self.updates.moments(raw) | self.auxiliary.state() | entropy
            if self.adapted:
                optimiser |= self.adapted.besides()
            return LearnerState(
                step, version, skipped, announced(self.model, self.adapted, raw), optimiser, rng
            )

        return copied

    def small(self) -> Callable[[], None]:
        """Return a function that restores the current counters, entropy and random state."""
        updates, entropy, rng = self.updates, self.entropy, torch.get_rng_state()
        skipped, in_a_row = updates.skipped, updates.in_a_row
        weight, followed = entropy.weight, entropy.entropy

        def set_back() -> None:
            updates.skipped, updates.in_a_row = skipped, in_a_row
            entropy.weight, entropy.entropy = weight, followed
            torch.set_rng_state(rng)

        return set_back

    def load(self, state: LearnerState) -> None:
        """Restore a learner's state."""
        if self.adapted:
            self.adapted.load(state.weights, state.optimiser)
        else:
            load_tensors(self.model, state.weights)
        self.auxiliary.load(state.optimiser)
        self.entropy.load(state.optimiser)
        self.updates.load(state.optimiser, state.skipped)
        torch.set_rng_state(tensor_of(state.rng["torch"]))


def announced(
    model: nn.Module, adapted: Adaptation | None, raw: Callable[[Tensor], RawTensor]
) -> dict[str, RawTensor]:
    """Return the tensors to announce, sorted by name, tied ones once: weights or adapters."""
    return adapted.tensors() if adapted else tensors_of(model, raw)


def trainable(
    directory: str, config: LearnerConfig, device: str
) -> tuple[nn.Module, Adaptation | None]:
    """Load the model of a directory, and the adapters that are trained instead of its weights.

    Raises Refused if it does not support the configuration.
    """
    model, adapted = loaded(directory), None
    if config.lora is not None:
        adapted = Adaptation.of(model, config.lora, alone=config.adapter_alone)
    model = on(device, model).eval()
    require_precision(model, config.computation.precision)
    if config.computation.exact:
        require_exact(model, device)
    if config.computation.gradient_checkpointing:
        compute_twice(model)
    return model, adapted
