"""The model of 135 million parameters for the figures of training and serving."""

from pathlib import Path

from rollcall.compose.benchmarks.figure import BenchmarkUnavailable
from rollcall.compose.extras import require

LANGUAGE_MODEL = Path("smollm2")


def language_model() -> Path:
    """Return its directory; raises LeftOut if it has not been fetched."""
    require("torch", "transformers")
    if not (LANGUAGE_MODEL / "config.json").is_file():
        msg = (
            f"no policy in {str(LANGUAGE_MODEL)!r} here; `rollcall policy fetch smollm2 --to "
            f"{LANGUAGE_MODEL}` writes one"
        )
        raise BenchmarkUnavailable(msg)
    return LANGUAGE_MODEL
