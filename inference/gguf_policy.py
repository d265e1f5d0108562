"""A GGUF file as a policy directory: its weights in full precision, its tokenizer, a template.

llama.cpp's format keeps weights in blocks of a few bits. What can be trained has to be plain
numbers, so they are multiplied out once and written as Hugging Face writes them; after that nothing
knows that there was a GGUF. transformers reads the format with the libraries `gguf` and
`accelerate`, and what it cannot read is refused by the file's name.
"""

import hashlib
import io
import json
from collections.abc import Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as hf_logging

from inference.chat import template_of
from inference.policy_dir import load_policy
from schemas.errors import Refused
from schemas.foreign_text import plain
from schemas.whole_files import appearing, refuse_full

FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class PlainModel:
    """What was in a GGUF, as transformers saves it."""

    model: Any
    tokenizer: Any

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())


def make_gguf_policy(
    file: Path, directory: Path, *, template: Mapping[str, Any], kept: Mapping[str, bytes]
) -> int:
    """Write a policy directory, whole or not at all; return how many parameters it has.

    `kept` are files that are laid beside the weights, such as their licence. Raises Refused where
    the file is no GGUF, or none that transformers can read, or the disk has no room for it.
    """
    refuse_full(directory, _numbers_in(file) * FLOAT32_BYTES)
    read = _read(file)
    try:
        template_of(template, read.tokenizer)
    except Refused as error:
        msg = f"{file.name}: {error}"
        raise Refused(msg) from error
    directory.parent.mkdir(parents=True, exist_ok=True)
    with appearing(directory) as hidden:
        hidden.mkdir()
        for name, data in kept.items():
            (hidden / name).write_bytes(data)
        _write(read, hidden)
        with file.open("rb") as opened:
            origin = {
                "file": file.name,
                "sha256": hashlib.file_digest(opened, "sha256").hexdigest(),
            }
        about = {"template": dict(template), "precision": "float32", "gguf": origin}
        (hidden / "rollcall.json").write_text(json.dumps(about, indent=2) + "\n")
        _refuse_if_other(file, hidden, read)
    return read.parameters


def _numbers_in(file: Path) -> int:
    """How many numbers its tensors hold, by its own index."""
    from gguf import GGUFReader

    try:
        return sum(int(tensor.n_elements) for tensor in GGUFReader(file).tensors)
    except Exception as error:  # it raises whatever comes of the bytes
        raise _unreadable(file, error) from error


def _read(file: Path) -> PlainModel:
    """Raises Refused for what transformers cannot read, or reads only a part of."""
    place: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    hf_logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()):  # bars that nothing else turns off
            tokenizer = AutoTokenizer.from_pretrained(file.parent, **place)
            packed, info = AutoModelForCausalLM.from_pretrained(
                file.parent, dtype=torch.float32, output_loading_info=True, **place
            )
            _refuse_parts(file, packed, info, len(tokenizer))
            # It counts as quantised for ever, and such a model is not saved: so another one.
            config = packed.config
            del config.quantization_config
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            model.load_state_dict(packed.state_dict())
    except Refused:
        raise
    except Exception as error:  # the format holds what its writer liked
        raise _unreadable(file, error) from error
    return PlainModel(model.eval(), tokenizer)


def _refuse_parts(file: Path, model: Any, info: Mapping[str, Any], tokens: int) -> None:
    """transformers fills what is missing with random numbers, and says so in a warning."""
    absent = sorted(info["missing_keys"]) or sorted(str(key) for key in info["mismatched_keys"])
    if absent:
        msg = (
            f"{file.name} lacks {len(absent)} of the model's tensors, the first is {absent[0]}; "
            "is it one part of several?"
        )
        raise Refused(msg)
    if tokens > model.config.vocab_size:
        msg = f"{file.name} names {tokens:,} tokens for {model.config.vocab_size:,} of the model"
        raise Refused(msg)
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            msg = f"tensor {name} of {file.name} holds numbers that are not finite; it is damaged"
            raise Refused(msg)


def _write(read: PlainModel, directory: Path) -> None:
    read.tokenizer.save_pretrained(directory)
    read.model.save_pretrained(directory)
    # Weights are written readable by their owner alone.
    for path in directory.glob("*.safetensors"):
        path.chmod((directory / "config.json").stat().st_mode)


def _refuse_if_other(file: Path, directory: Path, read: PlainModel) -> None:
    """Read it back as everybody will; raises Refused where that gives other weights."""
    written = load_policy(directory).model.state_dict()
    wanted = read.model.state_dict()
    other = [name for name, value in wanted.items() if not value.equal(written.get(name))]
    if other:
        msg = f"{file.name} does not read back as it was written: {other[0]} differs"
        raise Refused(msg)


def _unreadable(file: Path, error: Exception) -> Refused:
    said = plain(" ".join(f"{type(error).__name__}: {error}".split()), 200)
    return Refused(f"{file.name} is no GGUF that transformers can read ({said})")
