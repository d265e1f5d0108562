"""What a patch is judged by: the code as it was, the tests, and how they are run and read."""

from dataclasses import dataclass, field

from sandbox.boxes import tar_streams
from sandbox.boxes.box import Spec
from sandbox.tasks.harbor import HarborTask
from sandbox.tasks.verifier import Verifier


@dataclass(frozen=True, slots=True)
class Reference:
    """Everything that a grading needs but the patch."""

    verifier: Verifier
    tests: bytes
    """A tar stream, laid over the work directory."""
    base: bytes | None = None
    """A tar stream of the code as it was; None where the box has it."""
    workdir: str = ""
    """Absolute; empty: the box's own directory."""
    spec: Spec = field(default_factory=Spec)
    output_bytes: int = 16 << 20
    """A run of tests that prints more is ended."""
    alone: int = 3
    """So many of the tests to be mended are run alone, drawn for each grading."""


def reference_of(task: HarborTask, spec: Spec | None = None) -> Reference:
    """The reference of a task; blocks. Raises OSError, and WorkFailed for what is too much.

    Where the image has the code that is judged in its place there, else in the box's own directory.
    """
    environment, verifier = task.file.environment, task.file.verifier
    image, build = (verifier.image, None) if verifier.image else (task.image, task.build)
    workdir = task.placed(image)
    testbed = None if workdir else task.testbed
    writable = (workdir,) if workdir else ()
    return Reference(
        verifier,
        tests=tar_streams.of_directory(task.test_files),
        base=tar_streams.of_directory(testbed) if testbed else None,
        workdir=workdir,
        spec=spec or Spec(image=image, env=environment.env, writable=writable, build=build),
    )
