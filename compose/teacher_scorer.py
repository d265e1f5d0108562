"""The scorer `teacher:DIRECTORY`: a policy that scores every token that another policy sampled.

Its reward is 0, so it needs no weight beside others; its log-probability of each token is in
`token_scores`, for learners that distil. Unlike other scorers it needs an engine.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from rollcall.compose.extras import require
from rollcall.sandbox.scorers import ScorerSpec, check_scorer
from rollcall.sandbox.token_scores import PerToken
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import Trajectory

TEACHER = "teacher:"


def teacher_directory(name: str) -> Path | None:
    """Return the directory of a scorer's teacher; None for any other scorer."""
    return Path(name.removeprefix(TEACHER)).expanduser() if name.startswith(TEACHER) else None


def check_named(name: str) -> None:
    """Raise Refused for a scorer that does not exist, without loading it."""
    directory = teacher_directory(name)
    if directory is None:
        check_scorer(name)
    elif not (directory / "config.json").is_file():
        msg = (
            f"scorer {name!r}: no policy at {str(directory)!r}, no config.json there; name a local "
            "Hugging Face directory"
        )
        raise Refused(msg)


def check_teachers(scorers: Iterable[str], wanted: str, student: Path) -> None:
    """Raise Refused if a learner's teacher is not among its scorers or has another vocabulary.

    `wanted` is the prefix of the teacher's name, empty if the learner needs none.
    """
    names = [scorer.partition("*")[0] for scorer in scorers]
    if wanted and not any(name.startswith(wanted) for name in names):
        msg = (
            f"the learner distils from {wanted!r}, but the scorers are {', '.join(names)}; add "
            "'teacher:DIRECTORY' to them"
        )
        raise Refused(msg)
    directories = [each for each in map(teacher_directory, names) if each is not None]
    if directories:
        from rollcall.inference.teacher import require_same_vocabulary

        for directory in directories:
            require_same_vocabulary(student, directory)


def scorer_spec(text: str, threads: int | None = None) -> ScorerSpec:
    """Parse a scorer `name` or `name*weight`; a teacher's weights are loaded. Raises Refused."""
    name, _, weight = text.partition("*")
    try:
        number = float(weight or 1.0)
    except ValueError as error:
        msg = f"scorer {text!r}: the weight {weight!r} is no number; write NAME*0.5"
        raise Refused(msg) from error
    check_named(name)
    directory = teacher_directory(name)
    return ScorerSpec(name, number, None if directory is None else teacher(directory, threads))


def teacher(directory: Path, threads: int | None = None) -> Callable[[Trajectory], PerToken]:
    """Make the scorer of the teacher in a directory; raises Refused if there is none."""
    require("torch", "transformers")
    from rollcall.inference.teacher import Teacher

    held = Teacher(directory, threads=threads)

    def score(trajectory: Trajectory) -> PerToken:
        sequences = trajectory.sequences or ()
        tokens = {number: held.logprobs(each) for number, each in enumerate(sequences)}
        sampled = sum(each.loss_mask.count(1) for each in sequences)
        total = sum(float(each.sum()) for each in tokens.values())
        mean = f"{total / sampled:.4f} on average" if sampled else "nothing was sampled"
        return PerToken(0.0, tokens, f"log-probability of {sampled} tokens, {mean}")

    return score
