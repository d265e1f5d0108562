"""An engine that fuses tensors proves each by its digest: a stale tensor is named."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from rollcall.inference.load_weights import PublishedDigests, TensorPlace, require_loaded
from rollcall.inference.traced_loading import digest_of, load_and_prove
from rollcall.schemas.errors import WorkFailed

WIDE, ROWS, PADDED = 6, 10, 16
FUSED = {
    "q": ("qkv", 0, 4),
    "k": ("qkv", 4, 2),
    "v": ("qkv", 6, 2),
    "gate": ("gate_up", 0, 3),
    "up": ("gate_up", 3, 3),
}
"""Where a published tensor lies: which of the model's own, from which row, how many rows."""
PUBLISHED = {
    **{name: (rows, WIDE) for name, (_, _, rows) in FUSED.items()},
    "embed": (ROWS, WIDE),
    "turned": (WIDE, 5),
    "norm": (WIDE,),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
Load = Callable[[Iterable[tuple[str, Tensor]]], None]


class Fusing(nn.Module):
    """A model with the tensor layout of vLLM and its own loader."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        shapes = {
            "qkv": (8, WIDE),
            "gate_up": (6, WIDE),
            "embed": (PADDED, WIDE),
            "turned": (5, WIDE),
            "norm": (WIDE,),
        }
        for name, shape in shapes.items():
            tensor = torch.full(shape, 7.0, dtype=dtype)
            self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))
        self.head = self.embed  # tied

    def put(self, name: str, tensor: Tensor) -> None:
        if name in FUSED:
            own, at, rows = FUSED[name]
            getattr(self, own).data.narrow(0, at, rows).copy_(tensor)
        elif name == "turned":
            self.turned.data.copy_(tensor.t())
        elif name == "embed":
            self.embed[:ROWS].data.copy_(tensor)
            self.embed[ROWS:].data.fill_(0)
        else:
            self.norm.data.copy_(tensor)

    def load_weights(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        for name, tensor in tensors:
            self.put(name, tensor)


def version(number: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Neighbouring versions differ by the smallest possible step."""
    generator = torch.Generator().manual_seed(0)
    made = {}
    for name, shape in PUBLISHED.items():
        tensor = torch.randn(shape, generator=generator).to(dtype)
        bits = tensor.view({2: torch.int16, 4: torch.int32}[tensor.element_size()])
        made[name] = (bits ^ (number & 1)).view(dtype)
    return made


PLACES = {
    name: TensorPlace(number, shape) for number, (name, shape) in enumerate(PUBLISHED.items())
}


def published(tensors: Mapping[str, Tensor], precision: str) -> PublishedDigests:
    held = {name: digest_of(tensor.to(DTYPES[precision])) for name, tensor in tensors.items()}
    return PublishedDigests(2, Path("nowhere"), precision, held)


@dataclass
class Harmed:
    """A loader that loads one tensor wrongly."""

    model: Fusing
    name: str
    before: Mapping[str, Tensor]

    def passes_over(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        self.model.load_weights((name, each) for name, each in tensors if name != self.name)

    def loads_the_one_before(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        given = ((name, self.before[name] if name == self.name else each) for name, each in tensors)
        self.model.load_weights(given)

    def writes_it_over_by_the_one_before(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        self.model.load_weights(tensors)
        self.model.put(self.name, self.before[self.name])

    def leaves_its_last_row(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        for name, tensor in tensors:
            if name != self.name or name in ("turned", "embed", "norm"):
                self.model.put(name, tensor)
            else:
                own, at, rows = FUSED[name]
                getattr(self.model, own).data.narrow(0, at, rows - 1).copy_(tensor[: rows - 1])
        if self.name not in FUSED:
            self.writes_it_over_by_the_one_before(())

    def loads_another_into_its_place(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        held = dict(tensors)
        self.model.load_weights(held.items())
        alike = [name for name in held if held[name].shape == held[self.name].shape]
        for other in alike:
            if other != self.name:
                self.model.put(self.name, held[other])
        if len(alike) == 1:
            self.model.put(self.name, held[self.name] + 1)


HARMS = [
    each for each in vars(Harmed) if not each.startswith("_") and callable(getattr(Harmed, each))
]


@given(st.sampled_from(list(PUBLISHED)), st.sampled_from(HARMS), st.sampled_from(list(DTYPES)))
def test_a_stale_tensor_is_reported_by_name_for_every_cause(
    name: str, harm: str, precision: str
) -> None:
    model = Fusing(DTYPES[precision])
    one, two = version(1, DTYPES[precision]), version(2, DTYPES[precision])
    require_loaded(
        published(one, precision), load_and_prove(model, one, model.load_weights), PLACES
    )

    load: Load = getattr(Harmed(model, name, one), harm)
    loaded = load_and_prove(model, two, load)

    with pytest.raises(WorkFailed, match=rf"other tensors than version 2 .*\b{name}\b.* 1 in all"):
        require_loaded(published(two, precision), loaded, PLACES)


@given(st.sampled_from(list(DTYPES)), st.sampled_from(list(DTYPES)))
def test_neighbouring_versions_have_different_digests_in_every_precision(
    written: str, precision: str
) -> None:
    model = Fusing(DTYPES[precision])
    one, two = version(1, DTYPES[precision]), version(2, DTYPES[precision])
    as_written = {name: tensor.to(DTYPES[written]) for name, tensor in two.items()}

    loaded = load_and_prove(model, as_written, model.load_weights)

    require_loaded(published(as_written, precision), loaded, PLACES)
    with pytest.raises(WorkFailed, match=f"{len(PUBLISHED)} in all"):
        require_loaded(published(one, precision), loaded, PLACES)


def test_a_parameter_without_a_published_tensor_is_reported() -> None:
    model = Fusing(torch.float32)
    model.register_parameter("extra", nn.Parameter(torch.ones(2), requires_grad=False))

    loaded = load_and_prove(model, version(1), model.load_weights)

    assert loaded.stale == ("extra",)
    with pytest.raises(WorkFailed, match="a part is from before: extra"):
        require_loaded(published(version(1), "float32"), loaded, PLACES)


def test_one_of_two_tied_tensors_suffices_and_buffers_are_optional() -> None:
    model, tensors = Fusing(torch.float32), version(1)
    places = PLACES | {"head": PLACES["embed"], "mask": TensorPlace(99, (1,), constant=True)}
    more = tensors | {"head": tensors["embed"].clone(), "mask": torch.ones(1)}

    def load(given: Iterable[tuple[str, Tensor]]) -> None:
        model.load_weights((name, each) for name, each in given if name in tensors)

    require_loaded(published(more, "float32"), load_and_prove(model, more, load), places)


def test_a_tensor_held_in_another_dtype_is_compared_in_that_dtype(
    tmp_path: Path,
) -> None:
    model, tensors = Fusing(torch.bfloat16), version(1)
    model.norm.data = model.norm.data.float()
    file = tmp_path / "weights"
    save_file(tensors, file)
    told = PublishedDigests(1, file, "bfloat16", published(tensors, "bfloat16").by_name)

    loaded = load_and_prove(model, tensors, model.load_weights)

    require_loaded(told, loaded, PLACES)
    assert loaded.digests["norm"][0] == "float32"
    save_file(tensors | {"norm": tensors["norm"] + 1}, file)
    with pytest.raises(WorkFailed, match="norm, 1 in all"):
        require_loaded(told, loaded, PLACES)
