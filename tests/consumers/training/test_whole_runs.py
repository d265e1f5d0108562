"""A batch is trained once and completely, whatever fails in the trainer."""

import errno
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import rollcall.consumers.training
from rollcall.consumers.training import trainer as trainer_module
from rollcall.schemas.errors import Unavailable, Unfit
from rollcall.schemas.trajectory_refs import refs_of
from rollcall.schemas.weights import RawTensor
from rollcall.trainer.checkpoints.learner_state import LearnerState
from rollcall.trainer.rules.samples import Sample
from tests.support.changed_config import changed
from tests.support.faults import Fault, calls, places
from tests.support.faulty_files import faulty_files
from tests.support.staged_run import CONFIG, Counting, Stage
from tests.support.tiers import cases
from tests.support.tiny_run import RECIPE, World

STORED = RECIPE.replace("[policy]\n", '[policy]\nweights_url = "faulty://weights"\n').replace(
    "group_size = 4\n", 'group_size = 4\nold_logprobs = "snapshot"\n'
)
ON_POLICY = """[learner]
stream = true
max_staleness = 0
advantage = "dr_grpo"
aggregate = "token_mean"
"""
STREAMED = STORED.replace("[learner]\n", ON_POLICY)
AROUND = ("batch_training.py", "step_saver.py", "announcement.py", "fence.py")
"""What stands between a step of the learner and its record; stores are called from these."""
FILES = tuple(f"{rollcall.consumers.training.__path__[0]}/{name}" for name in AROUND)
OTHERS: tuple[Callable[[], Exception], ...] = (
    lambda: OSError(errno.ENOSPC, "no space left"), lambda: OSError(errno.EIO, "input/output"),
    lambda: MemoryError("no memory left"), lambda: RuntimeError("of a library"),
)  # fmt: skip
Taken = list[tuple[int, int, list[str], str]]


class Chained(Counting):
    """A learner with weights that record every sample trained, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = bytes(32)

    def step(self, samples: Sequence[Sample], *, version: int) -> dict[str, float]:
        names = [sample.scored.trajectory.rollout_id for sample in samples]
        self.weights = hashlib.sha256(self.weights + repr(names).encode()).digest()
        return super().step(samples, version=version)

    def tensors(self) -> dict[str, RawTensor]:
        return {"w": RawTensor("U8", (32,), self.weights)}

    def load(self, state: LearnerState) -> None:
        super().load(state)
        self.weights = bytes(state.weights["w"].data)


def begun(directory: Path) -> Stage:
    """A run that has taken a step."""
    stage = Stage(directory, changed(CONFIG, steps=2), learner=Chained)
    stage.train(1)
    return stage


def taken(stage: Stage) -> Taken:
    """The steps of the record; `Stage.check` has seen that no rollout is in two."""
    return [
        (step.step, step.version, [ref.rollout_id for ref in refs_of(step)], step.weights_digest)
        for step in stage.kept_steps()
    ]


@pytest.mark.parametrize("outage", cases([True, False]), ids=["outage", "others"])
def test_a_fault_between_a_step_and_its_record_changes_no_step(
    tmp_path: Path, outage: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "AWAY_S", 0.0)
    stage = begun(tmp_path / "undisturbed")
    found = places(FILES, stage.drain)
    wanted, ends = taken(stage), []
    assert [step for step, *_ in wanted] == [1, 2]

    for number, (place, count) in enumerate(found.items()):
        # Exits of contexts cannot fail, nor can mere notes of polled records.
        if place[2] in ("__exit__", "<genexpr>", "extend"):
            continue
        stage = begun(tmp_path / str(number))
        error = Unavailable("away") if outage else OTHERS[number % len(OTHERS)]()
        ends.append(end_of(stage, Fault(place, count, error)))
        stage.drain()
        assert taken(stage) == wanted, (place, ends[-1])

    assert ends.count("named") > 40
    assert ends.count("went on") > 40 if outage else ends.count("raised") > 5


def end_of(stage: Stage, fault: Fault) -> str:
    """The outcome of a process that meets the fault; the next one has started by then."""
    try:
        with calls(FILES, fault):
            stage.drain()
    except Unfit:
        how = "named"
    except (OSError, MemoryError, RuntimeError):
        how = "raised"
    else:
        return "went on"
    stage.begin()
    return how


@pytest.mark.parametrize("text", cases([STORED, STREAMED]), ids=["at once", "group by group"])
def test_a_store_outage_while_past_weights_are_read_costs_no_rollout(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a run that reads the weights of then for every batch
    monkeypatch.setattr(trainer_module, "AWAY_S", 0.0)
    faults = faulty_files()
    world = World(tmp_path, text)
    trainer = world.trainer()
    world.train(trainer, steps=1)

    # When their store is away for longer than `max_skipped` batches take
    faults.at = faults.calls
    for _ in range(400):
        for loop in world.loops:
            loop.turn(0.0)
        trainer.turn(0.0)
    assert trainer.learner.steps_done == 1
    faults.at = None
    world.train(trainer)

    # Then all is trained on that was asked for, and by another process to the same bits
    steps = world.steps()
    assert [step.step for step in steps] == [1, 2, 3, 4]
    assert not any("step_failed" in step.dropped for step in steps)
    assert [step.identical for step in world.trained_again(1, 4)] == [True] * 4
