"""Convert a GGUF file into a policy directory: full-precision weights, tokenizer, template.

llama.cpp's format keeps weights in blocks of a few bits. Training needs plain numbers, so they are
dequantised once and written in Hugging Face's format; the directory does not depend on the GGUF any
more. transformers reads the format with the libraries `gguf` and `accelerate`; a file that it
cannot read is refused by name.
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

from rollcall.inference.chat import template_of
from rollcall.inference.policy_dir import load_policy
from rollcall.schemas.atomic_files import atomic_path, require_free_space
from rollcall.schemas.errors import Refused
from rollcall.schemas.untrusted_text import clean_text

FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class PlainModel:
    """The contents of a GGUF, as transformers saves them."""

    model: Any
    tokenizer: Any

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())


def make_gguf_policy(
    file: Path, directory: Path, *, template: Mapping[str, Any], kept: Mapping[str, bytes]
) -> int:
    """Write a policy directory, whole or not at all; return its number of parameters.

    `kept` are files to write beside the weights, such as their licence. Raises Refused if the
    file is no GGUF or one that transformers cannot read, or if the disk has no room for it.
    """
    require_free_space(directory, _numbers_in(file) * FLOAT32_BYTES)
    read = _read(file)
    try:
        template_of(template, read.tokenizer)
    except Refused as error:
        msg = f"{file.name}: {error}"
        raise Refused(msg) from error
    directory.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(directory) as hidden:
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
    """Return the number of elements in its tensors, from its own index."""
    from gguf import GGUFReader

    try:
        return sum(int(tensor.n_elements) for tensor in GGUFReader(file).tensors)
    except Exception as error:  # it raises any exception on bad bytes
        raise _unreadable(file, error) from error


def _read(file: Path) -> PlainModel:
    """Read the file. Raises Refused if transformers cannot read it, or only a part of it."""
    place: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    hf_logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()):  # progress bars; there is no option to turn them off
            tokenizer = AutoTokenizer.from_pretrained(file.parent, **place)
            packed, info = AutoModelForCausalLM.from_pretrained(
                file.parent, dtype=torch.float32, output_loading_info=True, **place
            )
            _refuse_parts(file, packed, info, len(tokenizer))
            # The loaded model stays marked as quantised and cannot be saved: copy it to a new one.
            config = packed.config
            del config.quantization_config
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            model.load_state_dict(packed.state_dict())
    except Refused:
        raise
    except Exception as error:  # the format allows arbitrary content
        raise _unreadable(file, error) from error
    return PlainModel(model.eval(), tokenizer)


def _refuse_parts(file: Path, model: Any, info: Mapping[str, Any], tokens: int) -> None:
    """Raise Refused for missing parts, which transformers fills at random with only a warning."""
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
    # Weights files are written with access for their owner only.
    for path in directory.glob("*.safetensors"):
        path.chmod((directory / "config.json").stat().st_mode)


def _refuse_if_other(file: Path, directory: Path, read: PlainModel) -> None:
    """Load the directory as engines do; raises Refused if that gives other weights."""
    written = load_policy(directory).model.state_dict()
    wanted = read.model.state_dict()
    other = [name for name, value in wanted.items() if not value.equal(written.get(name))]
    if other:
        msg = f"{file.name} does not read back as it was written: {other[0]} differs"
        raise Refused(msg)


def _unreadable(file: Path, error: Exception) -> Refused:
    said = clean_text(" ".join(f"{type(error).__name__}: {error}".split()), 200)
    return Refused(f"{file.name} is no GGUF that transformers can read ({said})")
