"""What bits depend on is named, and what is not known of it too."""

import re

from trainer.machine import differing, machine


def test_a_machine_names_its_processor_beside_what_torch_uses_of_it() -> None:
    here = machine("cpu")

    assert here.keys() == {"threads", "ranks", "cpu", "processor", "torch", "device"}
    assert re.fullmatch(r"\S.*", here["processor"])


def test_what_is_otherwise_is_told_and_what_nobody_recorded() -> None:
    then = {"cpu": "AVX2", "threads": "2", "torch": "2.14"}
    now = {"cpu": "AVX512", "threads": "2", "processor": "GenuineIntel 6 143"}

    assert list(differing(then, now)) == [
        "cpu AVX2 then, AVX512 now",
        "processor unknown then, GenuineIntel 6 143 now",
        "torch 2.14 then, unknown now",
    ]
    assert list(differing(now, now)) == []
