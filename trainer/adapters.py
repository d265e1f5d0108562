"""Low-rank adapters: small matrices beside frozen weights, which alone are trained.

Source: LoRA, arXiv 2106.09685, §4, by peft. What is announced is the merged weights, under the
names of the model that the run began with, so engines know nothing of adapters. A checkpoint holds
the adapters besides; the frozen weights are those of the policy's directory.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from schemas import names
from schemas.errors import Refused, Unfit
from schemas.rules import require
from schemas.weights import RawTensor
from trainer.tensors import exported, raw_of, tensor_of

ALL = "all-linear"
"""peft's word for every linear layer but the head."""
NAME = "default"
BASE, PART, PLACE = ".base_layer", ".lora_", "/adapter"


@dataclass(frozen=True, slots=True)
class Lora:
    """`[policy.lora]` of a recipe."""

    rank: int = 16
    alpha: float = 32.0
    """What the product of the two matrices is multiplied by, times rank."""
    targets: tuple[str, ...] = ()
    """What the modules' names end with, such as q_proj; none: every linear layer but the head."""

    def __post_init__(self) -> None:
        whole = isinstance(self.rank, int) and self.rank >= 1
        require("rank", self.rank, whole, "give a number of at least 1, such as 16")
        require("alpha", self.alpha, self.alpha > 0, "give a number above 0, such as 32")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """From a table; a key that is none is refused. Raises Refused."""
        known = [field.name for field in fields(cls)]
        for key in values:
            if key not in known:
                raise names.unknown("key of lora", key, known)
        return cls(**{**values, "targets": tuple(values.get("targets", ()))})


def with_adapters(model: nn.Module, lora: Lora) -> nn.Module:
    """The model with adapters in it, which alone are trained; they begin as no change.

    Raises Refused where peft is not installed, or no module has such a name.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        msg = "peft not installed; run `pip install 'rollcall[lora]'`"
        raise Refused(msg) from error

    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=list(lora.targets) or ALL,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
    )
    try:
        adapted: nn.Module = inject_adapter_in_model(config, model, NAME)
    except ValueError as error:
        msg = f"targets of lora are {', '.join(lora.targets or (ALL,))!r}: {error}"
        raise Refused(msg) from error
    for name, parameter in adapted.named_parameters():
        parameter.requires_grad_(PART in name)
    return adapted


def merged(model: nn.Module) -> dict[str, RawTensor]:
    """The weights with their adapters added, in order of the names that they have without."""
    modules = dict(model.named_modules())
    found = {}
    with torch.no_grad():
        for name, tensor in exported(model).items():
            if PART in name:
                continue
            owner, is_adapted, _ = name.partition(f"{BASE}.weight")
            added = modules[owner].get_delta_weight(NAME) if is_adapted else None
            value = tensor if added is None else tensor + added
            found[name.replace(f"{BASE}.", ".")] = raw_of(value)
    return dict(sorted(found.items()))


@contextmanager
def as_merged(model: nn.Module) -> Iterator[None]:
    """Within, a model has the weights that are announced of it; then its own again, bit for bit."""
    adapted = [each for each in model.modules() if NAME in getattr(each, "lora_A", ())]
    with torch.no_grad():
        masters = [module.base_layer.weight.detach().clone() for module in adapted]
        scales = [module.scaling[NAME] for module in adapted]
        try:
            for module in adapted:
                module.base_layer.weight.add_(module.get_delta_weight(NAME))
                module.scaling[NAME] = 0.0
            yield
        finally:
            for module, master, scale in zip(adapted, masters, scales, strict=True):
                module.base_layer.weight.copy_(master)
                module.scaling[NAME] = scale


def adapters(model: nn.Module) -> dict[str, RawTensor]:
    """The adapters alone, as a checkpoint holds them among the optimiser's tensors."""
    return {f"{name}{PLACE}": raw_of(tensor) for name, tensor in _parts(model)}


def load_adapters(
    model: nn.Module, weights: Mapping[str, RawTensor], held: Mapping[str, RawTensor]
) -> None:
    """Overwrite the adapters; what is frozen has to be what `weights` were merged with.

    Raises Unfit.
    """
    parts = dict(_parts(model))
    missing = [name for name in parts if f"{name}{PLACE}" not in held]
    if missing:
        msg = f"no adapter {missing[0]!r} in the checkpoint; was it made without [policy.lora]?"
        raise Unfit(msg)
    for name, tensor in exported(model).items():
        if PART not in name and BASE not in name and weights.get(name) != raw_of(tensor):
            msg = (
                f"tensor {name!r} of the policy's directory is not what the checkpoint was made "
                "with; adapters belong to the weights that they were trained on"
            )
            raise Unfit(msg)
    with torch.no_grad():
        for name, tensor in parts.items():
            value = tensor_of(held[f"{name}{PLACE}"])
            if value.shape != tensor.shape:
                msg = (
                    f"adapter {name!r} is {tuple(value.shape)} in the checkpoint and "
                    f"{tuple(tensor.shape)} in the model; was rank of lora changed?"
                )
                raise Unfit(msg)
            tensor.copy_(value)


def _parts(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return (pair for pair in sorted(exported(model).items()) if PART in pair[0])
