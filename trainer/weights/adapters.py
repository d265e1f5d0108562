"""Low-rank adapters: small trained matrices beside frozen weights.

Source: LoRA, arXiv 2106.09685, §4, by peft. By default the merged weights are announced, under the
names of the initial model, so that engines need no adapters; a checkpoint then also holds the
adapters. Alternatively the adapter alone is announced (`rollcall.schemas.adapter_weights`), and a
checkpoint holds nothing else. The frozen weights are those of the policy's directory.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from rollcall.schemas.adapter_weights import KIND, AdapterAbout, base_digest
from rollcall.schemas.errors import Refused, Unfit
from rollcall.schemas.weights import RawTensor
from rollcall.trainer.config.tables import FLOAT32, Lora
from rollcall.trainer.weights.publication import as_published
from rollcall.trainer.weights.tensors import exported, like, raw_of, tensor_of, tensors_of, whole

ALL = "all-linear"
"""peft's word for every linear layer but the head."""
NAME = "default"
BASE, PART, PLACE = ".base_layer", ".lora_", "/adapter"


def with_adapters(model: nn.Module, lora: Lora) -> nn.Module:
    """Return the model with adapters; only these are trained, and they begin as no change.

    Raises Refused where peft is not installed, or no module has such a name.
    """
    config = peft_config(lora, transposed=_is_transposed(model))
    from peft import inject_adapter_in_model

    try:
        adapted: nn.Module = inject_adapter_in_model(config, model, NAME)
    except ValueError as error:
        msg = f"targets of lora are {', '.join(lora.targets or (ALL,))!r}: {error}"
        raise Refused(msg) from error
    for name, parameter in adapted.named_parameters():
        parameter.requires_grad_(PART in name)
    return adapted


def peft_config(lora: Lora, *, transposed: bool) -> Any:
    """Return the same as a peft configuration. Raises Refused if peft is not installed."""
    try:
        from peft import LoraConfig
    except ImportError as error:
        msg = "peft not installed; run `pip install 'rollcall[lora]'`"
        raise Refused(msg) from error

    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=list(lora.targets) or ALL,
        fan_in_fan_out=transposed,
    )


def _is_transposed(model: nn.Module) -> bool:
    """Return True if the linear layers are [in, out], as GPT-2's are."""
    return any(isinstance(module, Conv1D) for module in model.modules())


def merged(model: nn.Module) -> dict[str, RawTensor]:
    """Return the weights with their adapters added, sorted by the names of the plain model."""
    modules = dict(model.named_modules())
    found = {}
    with torch.no_grad():
        for name, tensor in exported(model).items():
            if PART in name:
                continue
            owner, is_adapted, _ = name.partition(f"{BASE}.weight")
            value = whole(tensor) + _added(modules[owner]) if is_adapted else tensor
            found[name.replace(f"{BASE}.", ".")] = raw_of(value)
    return dict(sorted(found.items()))


def _added(module: nn.Module) -> Tensor:
    """Return the full change that an adapter makes to its weight; all ranks have to call it.

    Gives the same bits as peft's `get_delta_weight`, which does not support sharded weights.
    """
    layer: Any = module
    down, up = whole(layer.lora_A[NAME].weight), whole(layer.lora_B[NAME].weight)
    product = up @ down
    return (product.T if layer.fan_in_fan_out else product) * layer.scaling[NAME]


@contextmanager
def as_merged(model: nn.Module) -> Iterator[None]:
    """Give the model its merged weights inside the context; restore its own bits afterwards."""
    adapted = [each for each in model.modules() if NAME in getattr(each, "lora_A", ())]
    with torch.no_grad():
        masters = [module.base_layer.weight.detach().clone() for module in adapted]
        scales = [module.scaling[NAME] for module in adapted]
        try:
            for module in adapted:
                weight = module.base_layer.weight
                weight.add_(like(weight, _added(module)))
                module.scaling[NAME] = 0.0
            yield
        finally:
            for module, master, scale in zip(adapted, masters, scales, strict=True):
                module.base_layer.weight.copy_(master)
                module.scaling[NAME] = scale


@dataclass(frozen=True, eq=False)
class Adaptation:
    """A model with adapters: what is announced and checkpointed of it, and how it is loaded."""

    model: nn.Module
    about: AdapterAbout
    alone: bool
    """True if the adapter alone is announced, and not the merged weights."""

    @classmethod
    def of(cls, model: nn.Module, lora: Lora, *, alone: bool) -> Self:
        """Put adapters into a model. Raises Refused as `with_adapters` does."""
        base = base_digest(tensors_of(model)) if alone else ""
        about = AdapterAbout(base, lora.rank, lora.alpha, _is_transposed(model))
        return cls(with_adapters(model, lora), about, alone)

    def tensors(self) -> dict[str, RawTensor]:
        """Return the tensors to announce."""
        if not self.alone:
            return merged(self.model)
        parts = {_published(name): raw_of(tensor) for name, tensor in _parts(self.model)}
        return dict(sorted((parts | {KIND: self.about.tensor()}).items()))

    def besides(self) -> dict[str, RawTensor]:
        """Return the tensors that a checkpoint holds in addition, among those of the optimiser."""
        if self.alone:
            return {}
        return {f"{name}{PLACE}": raw_of(tensor) for name, tensor in _parts(self.model)}

    @contextmanager
    def as_announced(self, precision: str) -> Iterator[None]:
        """Give the model the weights that servers compute with; restore its own afterwards."""
        # Rounding applies to what is published: the adapter before merging, or the merged weights.
        alone, rest = (precision, FLOAT32) if self.alone else (FLOAT32, precision)
        with (
            as_published(self.model, alone, PART),
            as_merged(self.model),
            as_published(self.model, rest),
        ):
            yield

    def load(self, weights: Mapping[str, RawTensor], held: Mapping[str, RawTensor]) -> None:
        """Load a checkpoint, whether it holds the adapter alone or the merged weights.

        The frozen weights must be those that the adapters were trained with. Raises Unfit.
        """
        about = AdapterAbout.of(weights)
        if about is None:
            _require_frozen(self.model, weights)
        elif self.alone or about.base:
            self._require_base(about)
        parts = dict(_parts(self.model))
        given = {
            name: weights.get(_published(name)) if about else held.get(f"{name}{PLACE}")
            for name in parts
        }
        _load_parts(parts, given)

    def _require_base(self, about: AdapterAbout) -> None:
        """Raise Unfit if the adapter names another base model than ours."""
        ours = self.about.base or base_digest(_frozen(self.model))
        if about.base != ours:
            msg = (
                f"base of the checkpoint's adapter has digest {about.base}, but the weights of the "
                f"policy's directory have {ours}; adapters belong to the weights that they were "
                "trained beside, so put that directory back"
            )
            raise Unfit(msg)


def _published(name: str) -> str:
    """Return peft's name of an adapter tensor in a file, which leaves out the adapter's name."""
    return name.replace(f".{NAME}.", ".")


def _frozen(model: nn.Module) -> dict[str, RawTensor]:
    """Return the frozen weights, under the names of the plain model."""
    named = exported(model).items()
    return {n.replace(f"{BASE}.", "."): raw_of(t) for n, t in named if PART not in n}


def _require_frozen(model: nn.Module, weights: Mapping[str, RawTensor]) -> None:
    for name, tensor in exported(model).items():
        if PART not in name and BASE not in name and weights.get(name) != raw_of(tensor):
            msg = (
                f"tensor {name!r} of the policy's directory is not what the checkpoint was made "
                "with; adapters belong to the weights that they were trained on"
            )
            raise Unfit(msg)


def _load_parts(parts: Mapping[str, Tensor], given: Mapping[str, RawTensor | None]) -> None:
    missing = next((name for name, raw in given.items() if raw is None), None)
    if missing:
        msg = f"no adapter {missing!r} in the checkpoint; was it made without [policy.lora]?"
        raise Unfit(msg)
    values = {name: tensor_of(raw) for name, raw in given.items() if raw is not None}
    for name, tensor in parts.items():
        if values[name].shape != tensor.shape:
            msg = (
                f"adapter {name!r} is {tuple(values[name].shape)} in the checkpoint and "
                f"{tuple(tensor.shape)} in the model; was rank of lora changed?"
            )
            raise Unfit(msg)
    with torch.no_grad():
        for name, tensor in parts.items():
            tensor.copy_(like(tensor, values[name]))


def _parts(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return (pair for pair in sorted(exported(model).items()) if PART in pair[0])
