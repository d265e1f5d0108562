"""The reference of a grading: the original code, the tests, and how they are run and parsed."""

from dataclasses import dataclass, field

from rollcall.sandbox.boxes import tar_streams
from rollcall.sandbox.boxes.box import Spec
from rollcall.sandbox.tasks.harbor import HarborTask
from rollcall.sandbox.tasks.task_file import Verifier


@dataclass(frozen=True, slots=True)
class Reference:
    """Everything that a grading needs beside the patch."""

    verifier: Verifier
    tests: bytes
    """A tar stream that is unpacked over the work directory."""
    base: bytes | None = None
    """A tar stream of the original code; None if the box's image has it."""
    workdir: str = ""
    """The absolute work directory; empty for the box's own directory."""
    spec: Spec = field(default_factory=Spec)
    output_bytes: int = 16 << 20
    """The most bytes that a run of tests may print before it is ended."""
    alone: int = 3
    """The number of fail-to-pass tests that are run alone, drawn for each grading."""


def reference_of(task: HarborTask, spec: Spec | None = None) -> Reference:
    """Read the reference of a task; blocks. Raises OSError, and WorkFailed if it is too large.

    If the image has the code, it is graded at its path there, else in the box's own directory.
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
