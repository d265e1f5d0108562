"""What the fold is given from outside, and the wall around all that a user wrote."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from consumers.agents.wishes import Program
from schemas.errors import ProgramFailed
from schemas.foreign_text import shown
from schemas.interrupts import is_from_outside

if TYPE_CHECKING:
    from random import Random

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class World:
    """What the fold is given from outside; none of it may depend on time or settings."""

    program_of: Callable[[str], Program]
    """Raises Refused for a program that is not there."""
    random_of: Callable[[int], "Random"]
    guard: AbstractContextManager[object] = field(default_factory=nullcontext)
    """Entered around every turn of a program; may raise ProgramFailed inside it."""

    def walled(self, program_name: str, turn: Callable[[], T]) -> T:
        """Do what runs a program or looks at what it yielded; raises ProgramFailed alone.

        A user's program may raise anything, also what ends a process; it ends its rollout only.
        """
        try:
            with self.guard:
                return turn()
        except ProgramFailed:
            raise
        except BaseException as error:
            if is_from_outside(error):
                raise
            kind = type(error).__name__
            msg = f"program {program_name!r} raised {kind}: {shown(error, str)}"
            raise ProgramFailed("raised", msg) from error
