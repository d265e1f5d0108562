"""The pause of decoding while a server adopts a version of 135 million parameters.

The real models worker on the in-memory log answers calls while versions are announced, as bfloat16
deltas with as many changed elements as in training. The pause of an adoption is the longest time
from the end of one decode step to the beginning of the next; the figure is the median of several.
The ceiling is a copy of the model's tensors. Notes give the time of the step that fed all prefixes
again, and of decode steps before and during the staging.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rollcall.compose.benchmarks.figure import Figure, timed
from rollcall.compose.benchmarks.one_server import OneServer, announced, call_of
from rollcall.compose.benchmarks.requirements import language_model
from rollcall.compose.settings import Settings
from rollcall.inference.engine import EngineAnswer
from rollcall.schemas.messages import Message, PolicyVersion

if TYPE_CHECKING:
    from rollcall.inference.transformers_engine import TransformersEngine
    from rollcall.trainer.learner.step import Learner

CALLS, ADOPTIONS, ANSWER = 8, 4, 64
PROMPT = "Tell a long story of a lake."
DENSITY = 0.007
PATIENCE_S = 120.0


def adopt_pause_ms(settings: Settings) -> Figure:
    """Measure the language model; raises LeftOut if it has not been fetched."""
    return pause_of(language_model(), settings, ADOPTIONS)


@dataclass(eq=False)
class StepTimes:
    """The times of an engine's steps, and the versions at their ends."""

    taken: list[tuple[float, float, int]] = field(default_factory=list)

    def watch(self, engine: "TransformersEngine") -> None:
        """Record every step from now on."""
        step = engine.step

        def noted() -> list[EngineAnswer]:
            began = time.perf_counter()
            answers = step()
            self.taken.append((began, time.perf_counter(), engine.version))
            return answers

        engine.step = noted  # type: ignore[method-assign]


@dataclass(eq=False)
class Busy:
    """A worker that always has running calls."""

    server: OneServer
    prompt: str
    steps: StepTimes = field(default_factory=StepTimes)
    asked: int = 0

    def ask(self) -> None:
        """Send new calls once there are none."""
        if not self.server.at_work():
            said = Message("user", self.prompt)
            numbers = range(self.asked, self.asked + CALLS)
            self.server.send(call_of(f"rollout {number}", said, ANSWER) for number in numbers)
            self.asked += CALLS

    def until(self, version: int, steps: int) -> None:
        """Run until it has taken `steps` steps under a version."""
        until = time.monotonic() + PATIENCE_S
        while sum(one == version for _, _, one in self.steps.taken) < steps:
            self.ask()
            self.server.loop.turn(0.0)
            if time.monotonic() > until:
                msg = f"version {version} is not served after {PATIENCE_S:g} s"
                raise TimeoutError(msg)


def pause_of(directory: Path, settings: Settings, adoptions: int, prompt: str = PROMPT) -> Figure:
    """Return the figure of any policy's directory."""
    with TemporaryDirectory(prefix="rollcall-") as scratch:
        server = OneServer(directory, settings, thread=ThreadPoolExecutor(1, "stage"))
        busy = Busy(server, prompt)
        versions = list(_versions(directory, Path(scratch), adoptions + 1))
        server.begin(versions[0])
        busy.steps.watch(server.engine)
        busy.until(0, 5)
        for number, version in enumerate(versions[1:], 1):
            server.announce(version)
            busy.until(number, 5)
        server.loop.stop(0.0)
        ceiling, _ = timed(
            lambda: [each.clone() for each in server.engine.policy.model.parameters()]
        )
    pauses, fed = _pauses(busy.steps.taken), _fed(busy.steps.taken)
    plain = sorted(end - begin for begin, end, _ in busy.steps.taken)
    notes = (
        f"{len(pauses)} adoptions, the longest {1e3 * max(pauses):.0f} ms; the step after it fed "
        f"{CALLS} prefixes anew in {1e3 * median(fed):.0f} ms; decode steps took "
        f"{1e3 * median(plain):.0f} ms, the longest {1e3 * plain[-1]:.0f} ms",
    )
    return Figure(1e3 * median(pauses), "ms", 1e3 * ceiling, lower_is_better=True, notes=notes)


def _pauses(taken: list[tuple[float, float, int]]) -> list[float]:
    """Return the longest time without a step around each adoption."""
    longest: dict[int, float] = {}
    for (_, end, _), (begin, _, version) in pairwise(taken):
        if version:
            longest[version] = max(longest.get(version, 0.0), begin - end)
    return list(longest.values())


def _fed(taken: list[tuple[float, float, int]]) -> list[float]:
    """Return the times of the first step under each new version."""
    first: dict[int, float] = {}
    for begin, end, version in taken:
        first.setdefault(version, end - begin)
    return [took for version, took in first.items() if version]


def _versions(directory: Path, scratch: Path, count: int) -> Iterator[PolicyVersion]:
    """Yield versions with small changes, as a trainer publishes them; the first is full."""
    import torch

    from rollcall.trainer.config.learner_config import LearnerConfig
    from rollcall.trainer.config.tables import BFLOAT16
    from rollcall.trainer.learner.step import Learner
    from rollcall.trainer.weights.publication import DELTA, Publication, Publishing

    learner = Learner(str(directory), LearnerConfig())
    learner.published = BFLOAT16
    publication = Publication(str(scratch), Publishing(BFLOAT16, DELTA, full_every=1_000))
    random = torch.Generator().manual_seed(7)
    for number in range(count):
        if number:
            _change(learner, random)
        yield announced(learner, number, publication.write(number, learner.tensors()))


def _change(learner: "Learner", random: object) -> None:
    import torch

    with torch.no_grad():
        for parameter in learner.model.parameters():
            moved = torch.rand(parameter.shape, generator=random) < DENSITY
            parameter.mul_(1 + 0.01 * moved)
