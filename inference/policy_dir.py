"""Policy directories: a local Hugging Face directory plus `rollcall.json`.

`rollcall.json` holds what Hugging Face has no field for: the template and the number format. A
directory is written whole or not at all, the same arguments give the same bytes, and the network is
never used. A downloaded directory without `rollcall.json` is served with its own chat template.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging as hf_logging

from rollcall.inference.base_weights import BaseWeights
from rollcall.inference.chat import Template, template_of
from rollcall.schemas.atomic_files import atomic_path
from rollcall.schemas.context_length import positions_used
from rollcall.schemas.errors import Refused
from rollcall.schemas.ids import digest

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

PRESETS: Mapping[str, tuple[str, ...]] = {
    "lake": ("<bos>", "<a>", "L", "D", "R", "U", "no", *(f"s{cell}" for cell in range(16))),
    "characters": ("<bos>", "<a>", "<eos>", "<unk>", "\n", *map(chr, range(32, 127))),
}
"""Token lists by name, in order of ids."""
WORDS = r"<\w+>|\w+|[^\w\s]"


@dataclass(frozen=True, slots=True)
class Policy:
    """The parts of a policy directory that an engine needs."""

    model: Any
    tokenizer: Any
    template: Template
    precision: str
    context: int
    """The most tokens a sequence may have."""
    end_ids: frozenset[int]
    """The tokens that end an answer when sampled."""
    base: BaseWeights
    """The directory's weights, for adapters."""


def make_policy(
    directory: str | Path,
    *,
    config: Mapping[str, Any],
    tokens: Sequence[str] | str,
    template: Mapping[str, Any],
    seed: int,
    precision: str = "float32",
) -> Path:
    """Write a policy with random weights, which the seed determines bit by bit.

    `config` is the content of config.json, with `model_type`. Tokens are words separated by spaces,
    or single characters; in the latter case longer ones are control tokens. They are padded with
    `<unusedN>` to the config's `vocab_size`. Raises Refused if the directory holds another policy.
    """
    hf_logging.disable_progress_bar()
    words = _words_of(tokens, config)
    spec = json.dumps([dict(config), words, dict(template), seed, precision], sort_keys=True)
    made_from = digest("policy", spec).hex()
    directory = Path(directory)
    if _exists(directory, made_from):
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    about = {"template": dict(template), "precision": precision, "made_from": made_from}
    try:
        with atomic_path(directory) as hidden:
            tokenizer = _tokenizer(words, template)
            tokenizer.save_pretrained(hidden)
            _model(config, tokenizer, seed, precision).save_pretrained(hidden)
            (hidden / "rollcall.json").write_text(json.dumps(about, indent=2) + "\n")
            _refuse_if_misread(load_policy(hidden).tokenizer, words)
    except OSError:
        # Another process may have been faster; fine if it made the same policy.
        if not _exists(directory, made_from):
            raise
    return directory


def load_policy(directory: str | Path, device: str = "cpu") -> Policy:
    """Load model, tokenizer and template; raises Refused for a directory that is no policy."""
    directory = Path(directory)
    if not (directory / "config.json").is_file():
        # Hugging Face would look for a missing directory's name on its hub.
        msg = f"no policy at {str(directory)!r}: no config.json there; make one with make_policy"
        raise Refused(msg)
    about = _about(directory)
    tokenizer, template = load_template(directory)
    load = partial(_loaded, directory, about.get("precision"))
    model = load()
    context = positions_used(model.config)
    if not context:
        msg = (
            f"{directory}: config.json does not say how many positions the model has; add "
            "max_position_embeddings"
        )
        raise Refused(msg)
    precision = str(model.dtype).removeprefix("torch.")
    return Policy(
        model.eval().requires_grad_(False).to(device),
        tokenizer,
        template,
        precision,
        context,
        template.end_ids | _end_ids(model),
        BaseWeights(load),
    )


def load_template(directory: Path) -> tuple[Any, Template]:
    """Load a policy's tokenizer and template, without its weights; raises Refused."""
    tokenizer = load_tokenizer(directory)
    return tokenizer, template_of(_about(directory).get("template", {"kind": "jinja"}), tokenizer)


def vocabulary_of(directory: Path, tokenizer: Any) -> int:
    """Return a model's number of ids; without a config, that of its tokenizer.

    Models have rows for more ids than their tokenizers name. Raises Refused for a broken config.
    """
    config = _object_in(directory / "config.json")
    parts = (config, config.get("text_config"))
    sizes = [part.get("vocab_size") for part in parts if isinstance(part, dict)]
    return max([len(tokenizer), *(size for size in sizes if type(size) is int)])


def _words_of(tokens: Sequence[str] | str, config: Mapping[str, Any]) -> list[str]:
    if isinstance(tokens, str) and tokens not in PRESETS:
        msg = f"token preset {tokens!r}; known are {', '.join(PRESETS)}, or give a list"
        raise Refused(msg)
    words = list(PRESETS[tokens] if isinstance(tokens, str) else tokens)
    size = config.get("vocab_size", len(words))
    if len(words) > size or len(set(words)) < len(words) or "" in words:
        msg = (
            f"{len(words)} tokens, {len(set(words))} different ones, for a vocab_size of {size}; "
            "they must be different, not empty, and fit"
        )
        raise Refused(msg)
    return words + [f"<unused{number}>" for number in range(len(words), size)]


def _tokenizer(words: Sequence[str], template: Mapping[str, Any]) -> PreTrainedTokenizerFast:
    plain = [word for word in words if not word.startswith("<unused")]
    by_character = sum(len(word) == 1 for word in plain) > len(plain) / 2
    by_character = by_character and template.get("kind") != "words"
    vocabulary = {word: index for index, word in enumerate(words)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    control: list[str] = []
    if by_character:
        core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        core.decoder = decoders.Fuse()
        control = [word for word in words if len(word) > 1 and word != "<unk>"]
    elif any(len(word) == 1 and not word.isalnum() for word in plain):
        # Punctuation forms words of its own, separate from the word before it.
        core.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), "removed", invert=True)
    else:
        core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = {"bos_token": template.get("bos"), "eos_token": template.get("end")}
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        extra_special_tokens=control,
        clean_up_tokenization_spaces=False,
        **{name: token for name, token in ends.items() if token},
    )


def load_tokenizer(directory: Path) -> Any:
    """Load a policy's tokenizer: from tokenizer.json where no model's class is named.

    AutoTokenizer decides by the model type for some models: it reads a word-level tokenizer beside
    a Qwen2 model as Qwen2's own, which drops every space and encodes words to nothing.
    """
    named = _object_in(directory / "tokenizer_config.json").get("tokenizer_class", "")
    generic = named in ("TokenizersBackend", "PreTrainedTokenizerFast")
    reader = PreTrainedTokenizerFast if generic else AutoTokenizer
    return reader.from_pretrained(directory, local_files_only=True)


def _refuse_if_misread(tokenizer: Any, words: Sequence[str]) -> None:
    for index, word in enumerate(words):
        ids = tokenizer.encode(word, add_special_tokens=False)
        if ids != [index] and not word.startswith(("<unused", "<unk>")):
            msg = f"token {index}, {word!r}, encodes to {ids}; are words apart by spaces meant?"
            raise Refused(msg)


def _model(config: Mapping[str, Any], tokenizer: Any, seed: int, precision: str) -> Any:
    if precision not in DTYPES:
        msg = f"precision {precision!r}; known are {', '.join(DTYPES)}"
        raise Refused(msg)
    fields = {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": None,
        **config,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            # Some invalid configs fail only while the model is made.
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields))
        except (ValueError, TypeError) as error:
            msg = f"the policy's config {dict(config)!r} is none of Hugging Face's: {error}"
            raise Refused(msg) from error
    return model.to(DTYPES[precision])


def _about(directory: Path) -> dict[str, Any]:
    return _object_in(directory / "rollcall.json")


def _object_in(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file; an empty one if there is no file."""
    if not path.is_file():
        return {}
    try:
        held = json.loads(path.read_text())
    except ValueError as error:
        msg = f"{str(path)!r} is not JSON: {error}"
        raise Refused(msg) from error
    if not isinstance(held, dict):
        msg = f"{str(path)!r} holds a {type(held).__name__}, not an object"
        raise Refused(msg)
    return held


def _loaded(directory: Path, precision: str | None) -> Any:
    hf_logging.disable_progress_bar()
    # sdpa takes the engine's additive masks and does not materialise attention weights.
    return AutoModelForCausalLM.from_pretrained(
        directory,
        local_files_only=True,
        attn_implementation="sdpa",
        dtype=DTYPES[precision] if precision else "auto",
    )


def _end_ids(model: Any) -> frozenset[int]:
    end_ids = {model.config.eos_token_id} if not model.generation_config else set()
    if model.generation_config:
        ids = model.generation_config.eos_token_id
        end_ids = set(ids) if isinstance(ids, list) else {ids}
    return frozenset(end_ids - {None})


def _exists(directory: Path, made_from: str) -> bool:
    if not directory.exists():
        return False
    if _about(directory).get("made_from") == made_from:
        return True
    msg = (
        f"{str(directory)!r} is there already and was not made from these arguments; "
        "choose another directory or remove it"
    )
    raise Refused(msg)
