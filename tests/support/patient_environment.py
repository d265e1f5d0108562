"""Environments that wait, made by name like anybody's own, and a host that offers nothing."""

from collections.abc import Mapping, Sequence

from rollcall.sandbox.environment import Observation
from rollcall.sandbox.host import AgentEndpoint, Host


class Nowhere:
    """A host for what needs only its place."""

    place = "nowhere"

    async def open_endpoint(
        self, policies: Sequence[str], task: Mapping[str, object]
    ) -> AgentEndpoint:
        raise NotImplementedError

    def keep(self, name: str, content: bytes) -> str:
        raise NotImplementedError


class Patient:
    """Might wait, and shows where it is."""

    replayable = True
    slot = "patience"

    def __init__(self, host: Host, words: int = 1) -> None:
        self.host = host
        self.words = words

    async def open(self, seed: int) -> Observation:
        return Observation(self.host.place * self.words)

    async def step(self, action: str) -> Observation:
        return Observation(action)

    async def close(self) -> None:
        """There is nothing to give back."""


def patient(words: int, host: Host) -> Patient:
    return Patient(host, words)


def untold(words: int):  # type: ignore[no-untyped-def]
    """A function that does not say what it makes."""
    return Patient(Nowhere(), words)


def hinted(words: int) -> "NotThere":  # type: ignore[name-defined]  # noqa: F821
    """A function whose word about itself cannot be looked up."""
    return untold(words)


class Hosted:
    """Does not wait, so that its host is a key like any other."""

    replayable = True

    def __init__(self, host: str) -> None:
        self.host = host

    def open(self, seed: int) -> Observation:
        return Observation(self.host)

    def step(self, action: str) -> Observation:
        return Observation(action)

    def close(self) -> None:
        """There is nothing to give back."""
