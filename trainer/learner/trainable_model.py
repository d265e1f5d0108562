"""Loading of a model for training: device, precision and adapters."""

from torch import nn

from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner.arithmetic import compute_twice, on, require_precision
from rollcall.trainer.learner.exact import require_exact
from rollcall.trainer.learner.forward import loaded
from rollcall.trainer.weights.adapters import Adaptation


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
    require_precision(model, config.precision)
    if config.exact:
        require_exact(model, device)
    if config.gradient_checkpointing:
        compute_twice(model)
    return model, adapted
