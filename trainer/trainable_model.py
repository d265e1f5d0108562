"""A model as a learner has it: on its device, in its precision, with adapters where it has any."""

from torch import nn

from trainer.adapters import Adaptation
from trainer.arithmetic import compute_twice, on, require_precision
from trainer.config import LearnerConfig
from trainer.exact import require_exact
from trainer.forward import loaded


def trainable(
    directory: str, config: LearnerConfig, device: str
) -> tuple[nn.Module, Adaptation | None]:
    """The model of a directory, and the adapters that are trained in place of its weights.

    Raises Refused where it has no way to compute what the configuration says.
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
