"""A rig whose log a test cuts off or makes anew."""

from typing import Any

from rollcall.consumers.loop.loop import Loop
from rollcall.inference.scripted import ScriptedEngine
from rollcall.schemas.messages import RolloutRequest, Trajectory
from tests.support.journals import request
from tests.support.programs import ASKS
from tests.support.rig import Rig, source_of


def yes(call: Any) -> str:
    del call
    return "yes"


class Lost(Rig):
    """Rollouts of one call each that ended and were committed; then its workers left."""

    def __init__(self, rollouts: int = 4) -> None:
        super().__init__()
        self.workers = 0
        self.crew = self.hire()
        self.submit("r", rollouts)
        self.work()

    def hire(self, *, accept: bool = False) -> list[Loop]:
        """Make a crew that has not read anything yet."""
        self.workers += 1
        name, engine = f"w{self.workers}", ScriptedEngine("p", yes)
        crew = [
            self.agents(f"a-{name}", accept=accept),
            self.models(engine, f"m-{name}"),
            self.rewards(f"r-{name}"),
        ]
        for loop in crew:
            loop.accept_truncation = accept
        return crew

    def submit(self, prefix: str, count: int) -> None:
        for number in range(count):
            self.ask(request(f"{prefix}{number}", ASKS))

    def work(self) -> None:
        self.settle(*self.crew)
        for _ in range(2):
            self.commit(*self.crew)

    def replace_crew(self, *, accept: bool = False) -> None:
        for loop in self.crew:
            source_of(loop).kill()
        self.crew = self.hire(accept=accept)

    def waiting(self) -> set[str]:
        """Ids that are asked for on the topic and have no trajectory."""
        asked = {each.rollout_id for each in self.read(self.topics.requests, RolloutRequest)}
        return asked - {each.rollout_id for each in self.read(self.topics.trajectories, Trajectory)}
