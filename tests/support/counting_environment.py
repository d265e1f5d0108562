"""Environments that tests stand on, made by name like anybody's own."""

from rollcall.sandbox.environment import Observation


class Counting:
    """Shows the seed and what was said so far; raises on "boom", ends on "end"."""

    def __init__(self, *, replayable: bool = True) -> None:
        self.replayable = replayable
        self.said: list[str] = []
        self.opened = 0
        self.closed = 0
        self.seed = 0

    def open(self, seed: int) -> Observation:
        self.seed, self.said = seed, []
        self.opened += 1
        return Observation(f"{seed}:")

    def step(self, action: str) -> Observation:
        if action == "boom":
            msg = "the floor gave way"
            raise RuntimeError(msg)
        if action == "exit":
            raise SystemExit(3)
        self.said.append(action)
        text = f"{self.seed}:{','.join(self.said)}"
        return Observation(text, reward=float(len(action)), terminated=action == "end")

    def close(self) -> None:
        self.closed += 1


def nothing(**_: object) -> None:
    """A factory that makes no environment."""
