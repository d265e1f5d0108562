"""The description of an adapter, and how its base is recognised."""

from dataclasses import replace

import numpy as np
import pytest

from rollcall.schemas.adapter_weights import KIND, AdapterAbout, base_digest, modules_of
from rollcall.schemas.errors import WeightsDiffer
from rollcall.schemas.weights import RawTensor, from_safetensors, to_safetensors

ABOUT = AdapterAbout("tensors:ab", 2, 8.0, transposed=True)


def tensor(dtype: str, values: np.ndarray) -> RawTensor:
    return RawTensor(dtype, values.shape, values.tobytes())


def test_an_adapter_description_is_read_back_unchanged() -> None:
    tensors = from_safetensors(to_safetensors({KIND: ABOUT.tensor()}))

    assert AdapterAbout.of(tensors) == ABOUT
    assert ABOUT.scale == 4.0
    assert AdapterAbout.of({}) is None


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"{", "is no adapter.s configuration"),
        (b"[1]", "is no adapter.s configuration"),
        (b'{"base": "x"}', "is no adapter.s configuration"),
        (b'{"base": "x", "rank": "two", "alpha": 1}', "is no adapter.s configuration"),
        (replace(ABOUT, kind="dora").tensor().data, "kind 'dora', .* known is kind 'adapter'"),
        (replace(ABOUT, rank=0).tensor().data, "rank 0 "),
    ],
)
def test_an_invalid_adapter_description_is_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(WeightsDiffer, match=complaint):
        AdapterAbout.of({KIND: RawTensor("U8", (len(data),), data)})


def test_incomplete_modules_and_foreign_tensors_are_refused() -> None:
    one = tensor("F32", np.zeros((1, 1), "<f4"))
    whole = {KIND: ABOUT.tensor(), "m.lora_A.weight": one, "m.lora_B.weight": one}

    assert modules_of(whole) == ["m"]
    with pytest.raises(WeightsDiffer, match=r"one matrix of modules \['n'\], .* \['m.weight'\]"):
        modules_of(whole | {"n.lora_B.weight": one, "m.weight": one})


def test_the_base_digest_depends_on_float32_values_not_on_precision() -> None:
    values = np.array([1.5, -0.0, np.inf, 2.0**-130], "<f4")
    coarse = RawTensor("BF16", (4,), (values.view("<u4") >> 16).astype("<u2").tobytes())
    half = np.array([1.5, -0.0], "<f2")

    assert base_digest({"w": coarse}) == base_digest({"w": tensor("F32", values)})
    assert base_digest({"w": tensor("F16", half)}) == base_digest(
        {"w": tensor("F32", half.astype("<f4"))}
    )
    other = values.copy()
    other[1] = 0.0
    assert base_digest({"w": tensor("F32", other)}) != base_digest({"w": coarse})
