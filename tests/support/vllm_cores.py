"""vLLM, started once for all tests that ask: it takes most of a minute."""

from dataclasses import dataclass, field
from pathlib import Path

from rollcall.inference.vllm_core import CoreOptions, VllmCore


@dataclass
class Cores:
    """Lends those that run already; whoever asks for one more at a time gets a new one."""

    free: list[VllmCore] = field(default_factory=list)
    lent: list[VllmCore] = field(default_factory=list)
    directory: Path | None = None

    def lend(self, options: CoreOptions) -> VllmCore:
        """To be given to an engine as its `start`; all serve one directory."""
        assert self.directory in (None, options.directory)
        self.directory = options.directory
        core = self.free.pop() if self.free else VllmCore(options)
        self.lent.append(core)
        return core

    def take_back(self) -> None:
        """Stop whatever was asked of those that are lent, and lend them again."""
        for core in self.lent:
            core.halt()
            while not core.progress.empty():
                core.progress.get()
        self.free, self.lent = self.free + self.lent, []

    def close(self) -> None:
        for core in self.free + self.lent:
            core.close()
