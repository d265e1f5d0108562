"""Everything that the bits depend on is named, including unknown values."""

import re

from rollcall.trainer.learner.machine import differing, machine


def test_a_machine_names_its_processor_and_the_instructions_torch_uses() -> None:
    here = machine("cpu")

    assert here.keys() == {"threads", "ranks", "cpu", "processor", "torch", "device"}
    assert re.fullmatch(r"\S.*", here["processor"])


def test_machine_differences_and_unrecorded_fields_are_listed() -> None:
    then = {"cpu": "AVX2", "threads": "2", "torch": "2.14"}
    now = {"cpu": "AVX512", "threads": "2", "processor": "GenuineIntel 6 143"}

    assert list(differing(then, now)) == [
        "cpu AVX2 then, AVX512 now",
        "processor unknown then, GenuineIntel 6 143 now",
        "torch 2.14 then, unknown now",
    ]
    assert list(differing(now, now)) == []
