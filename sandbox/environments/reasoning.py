"""Reasoning-gym's data sets as tasks of one turn: a question, an answer, a score in [0, 1].

A seed identifies an entry: entry 0 of the data set made with that seed. Making it again gives the
same entry, which rescoring relies on. A scorer that raises gives 0, with a note.
"""

import math
from collections.abc import Mapping
from typing import Any

from reasoning_gym import create_dataset
from reasoning_gym.factory import DATASETS
from reasoning_gym.utils import extract_answer

from rollcall.sandbox.environment import Observation
from rollcall.sandbox.user_code import convert_errors
from rollcall.schemas import names
from rollcall.schemas.errors import FailureCode, WorkFailed

HASH_ORDERED = frozenset(
    {
        "isomorphic_strings",
        "knight_swap",
        "polynomial_multiplication",
        "ransom_note",
        "word_ladder",
    }
)
"""Data sets that depend on the order of a set of strings, which differs by process (0.1.25)."""


class ReasoningTask:
    """One question per episode; the answer is the whole action, or its last `<answer>` element."""

    def __init__(self, dataset: str, config: Mapping[str, Any] | None = None) -> None:
        self.replayable = dataset not in HASH_ORDERED
        self._name = dataset
        self._config = dict(config or {})
        _check(dataset, self._config)
        self._dataset: Any = None
        self._entry: dict[str, Any] = {}

    def open(self, seed: int) -> Observation:
        self._dataset = create_dataset(self._name, seed=seed, size=1, **self._config)
        self._entry = self._dataset[0]
        return Observation(self._entry["question"], info={"dataset": self._name})

    def step(self, action: str) -> Observation:
        """End the episode; `expected` is None for data sets that score without an answer.

        Raises WorkFailed if the environment is not open.
        """
        if not self._entry:
            msg = f"data set {self._name!r} is asked for a step before it was opened"
            raise WorkFailed(code=FailureCode.RAISED, message=msg, retriable=False)
        value, note = self._grade(action)
        info = {"dataset": self._name, "expected": self._entry["answer"]}
        if note:
            info["note"] = note
        return Observation("", reward=value, terminated=True, info=info)

    def close(self) -> None:
        self._dataset, self._entry = None, {}

    def _grade(self, action: str) -> tuple[float, str]:
        answer = extract_answer(action) or action.strip()
        try:
            with convert_errors(FailureCode.RAISED, f"the scorer of {self._name!r} raised"):
                value = float(self._dataset.score_answer(answer, self._entry))
        except WorkFailed as error:
            return 0.0, str(error)
        if not math.isfinite(value):
            return 0.0, f"the scorer of {self._name!r} gave {value}"
        return min(1.0, max(0.0, value)), ""


def _check(dataset: str, config: Mapping[str, Any]) -> None:
    if dataset not in DATASETS:
        msg = f"unknown data set {dataset!r}; {names.hint(dataset, DATASETS)}"
        raise WorkFailed(code=FailureCode.BAD_CONFIG, message=msg, retriable=False)
    mine = {"seed", "size"} & config.keys()
    if mine:
        msg = f"data set {dataset!r}: leave {sorted(mine)} out, the seed of the task decides"
        raise WorkFailed(code=FailureCode.BAD_CONFIG, message=msg, retriable=False)
    with convert_errors(FailureCode.BAD_CONFIG, f"data set {dataset!r} refuses {dict(config)}"):
        sample = DATASETS[dataset][1](**config, seed=0, size=1)
        getattr(sample, "validate", lambda: None)()
