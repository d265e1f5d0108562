"""Export of a run's newest weights as a directory that Hugging Face's libraries load.

A run that publishes only its adapter gives a peft directory, which names the policy that the run
began with; or, merged, a plain one like any other run.

The directory appears complete or not at all: it is made under another name, read back and compared
with the checkpoint, and then renamed.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog
from transformers import AutoModelForCausalLM, AutoTokenizer

from rollcall.compose.runs.run_folder import RunFolder
from rollcall.inference.chat import RoleTemplate
from rollcall.inference.exported_template import exported_template
from rollcall.inference.policy_dir import Policy, load_policy
from rollcall.schemas.adapter_weights import KIND, AdapterAbout
from rollcall.schemas.atomic_files import atomic_path, require_unused
from rollcall.schemas.errors import Refused, WeightsDiffer
from rollcall.schemas.weights import from_uri, to_safetensors, weights_digest
from rollcall.trainer.checkpoints.checkpoint import Checkpoint, load_latest
from rollcall.trainer.checkpoints.learner_state import LearnerState
from rollcall.trainer.config.tables import Lora
from rollcall.trainer.learner.forward import loaded
from rollcall.trainer.weights.adapters import Adaptation, merged, peft_config
from rollcall.trainer.weights.tensors import DTYPES, load_tensors, tensors_of

ABOUT = "rollcall.json"
TOKENIZER = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
"""The template file that Hugging Face prefers to the tokenizer's configuration."""
WEIGHTS = (
    "*.safetensors",
    "*.safetensors.index.json",
    "*.bin",
    "*.bin.index.json",
    "*.pt",
    "*.pth",
)
"""Files that are not copied: the weights that the run began with, in any format."""


log = structlog.get_logger()


def export(folder: RunFolder, out: Path, *, merge: bool = False) -> int:
    """Write the newest checkpoint's weights to `out`; return their version.

    With `merge` an adapter is added to its base. Raises Refused, and Unfit if the base is gone.
    """
    out = out.expanduser().absolute()
    require_unused(out, "--out")
    checkpoint = _newest(folder)
    about = AdapterAbout.of(checkpoint.state.weights)
    if about is not None and not merge:
        with _made(out) as hidden:
            write_adapter(folder, checkpoint.state, about, hidden)
    else:
        _export_whole(folder, checkpoint, out)
    return checkpoint.version


def export_state(folder: RunFolder, state: LearnerState, out: Path) -> None:
    """Write a learner's state as a policy directory."""
    out = out.expanduser().absolute()
    require_unused(out, "--out")
    _export_whole(folder, Checkpoint(state, -1), out)


def _export_whole(folder: RunFolder, checkpoint: Checkpoint, out: Path) -> None:
    if AdapterAbout.of(checkpoint.state.weights) is not None:
        whole = merged_state(folder, checkpoint.state)
        checkpoint = replace(checkpoint, state=whole)
    with _made(out) as hidden:
        _write(folder, checkpoint, hidden)


@contextmanager
def _made(out: Path) -> Iterator[Path]:
    """Yield a directory to fill, which appears under its name when complete."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(out) as hidden:
        hidden.mkdir()
        yield hidden


def _newest(folder: RunFolder) -> Checkpoint:
    directory = folder.directory / "checkpoints"
    latest = load_latest(directory)
    if latest.checkpoint is None:
        bad = f"; passed over: {'; '.join(latest.passed_over)}" if latest.passed_over else ""
        msg = f"run {folder.run_id!r} has no whole checkpoint in {str(directory)!r} yet{bad}"
        raise Refused(msg)
    return latest.checkpoint


def _write(folder: RunFolder, checkpoint: Checkpoint, directory: Path) -> None:
    policy, mode = load_policy(folder.policy), directory.stat().st_mode
    shutil.copytree(
        folder.policy, directory, ignore=shutil.ignore_patterns(*WEIGHTS), dirs_exist_ok=True
    )
    weights = checkpoint.state.weights
    # Training may use another precision than the directory that it began with.
    model = policy.model.to(DTYPES[next(iter(weights.values())).dtype])
    load_tensors(model, weights)
    model.save_pretrained(directory)
    _open_to_readers(directory, mode)
    _note_origin(directory / ABOUT, folder, checkpoint)
    _verify_weights(directory, checkpoint)
    _verify_tokenizer(directory, policy)
    _write_chat_template(directory, policy)


def _write_chat_template(directory: Path, policy: Policy) -> None:
    """Write the chat template, so that other programs render conversations as in training."""
    text = exported_template(policy.template, policy.tokenizer)
    if text is not None:
        (directory / CHAT_TEMPLATE).write_text(text)
    elif isinstance(policy.template, RoleTemplate):
        (directory / CHAT_TEMPLATE).unlink(missing_ok=True)
        log.warning("no_chat_template_exported", reason="no text gives the tokens of its template")


def _open_to_readers(directory: Path, mode: int) -> None:
    """Set the mode: weights and new directories are created with access for the owner only."""
    directory.chmod(mode)
    for path in directory.glob("*.safetensors"):
        path.chmod((directory / "config.json").stat().st_mode)


def _note_origin(path: Path, folder: RunFolder, checkpoint: Checkpoint) -> None:
    """Record the run and version of the weights, in place of `made_from`, which is outdated."""
    about: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    about.pop("made_from", None)
    about["exported"] = {
        "run_id": folder.run_id,
        "version": checkpoint.version,
        "weights_digest": weights_digest(checkpoint.state.weights),
    }
    path.write_text(json.dumps(about, indent=2) + "\n")


def _verify_weights(directory: Path, checkpoint: Checkpoint) -> None:
    """Read the weights back as users do; raises WeightsDiffer."""
    model = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True, dtype="auto")
    digest, wanted = weights_digest(tensors_of(model)), weights_digest(checkpoint.state.weights)
    if digest != wanted:
        msg = (
            f"version {checkpoint.version} reads back with weights digest {digest[:16]}, but the "
            f"checkpoint has {wanted[:16]}; nothing was exported"
        )
        raise WeightsDiffer(msg)


def _verify_tokenizer(directory: Path, policy: Policy) -> None:
    """Make AutoTokenizer load the tokenizer of the training; raises WeightsDiffer.

    For some model types, such as Qwen2, it loads the type's own tokenizer instead of the generic
    one that is named. An empty `auto_map` makes it follow the file.
    """
    if _reads_as(directory, policy):
        return
    path = directory / TOKENIZER
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"auto_map": {"AutoTokenizer": [None, None]}}, indent=2))
    if not _reads_as(directory, policy):
        msg = f"AutoTokenizer reads {str(directory)!r} otherwise than the run did; nothing exported"
        raise WeightsDiffer(msg)


def _reads_as(directory: Path, policy: Policy) -> bool:
    tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    return _core(tokenizer) == _core(policy.tokenizer)


def _core(tokenizer: Any) -> str:
    """Return a fast tokenizer's full definition as text; of others, their vocabulary."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend.to_str() if backend else json.dumps(tokenizer.get_vocab(), sort_keys=True)


ADAPTER_WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
"""The prefix of names in a model that peft has wrapped."""


def write_adapter(
    folder: RunFolder, state: LearnerState, about: AdapterAbout, directory: Path
) -> None:
    """Write a directory for `from_pretrained` of peft's PeftModel and of transformers.

    It names the path of the run's policy as its base. Raises WeightsDiffer, and Refused if the
    recipe's adapter has changed.
    """
    config = peft_config(_lora_of(folder, about), transposed=about.transposed)
    config.base_model_name_or_path = str(folder.policy.resolve())
    config.task_type, config.inference_mode = "CAUSAL_LM", True
    config.save_pretrained(directory)
    tensors = {f"{PREFIX}{n}": tensor for n, tensor in state.weights.items() if n != KIND}
    (directory / ADAPTER_WEIGHTS).write_bytes(to_safetensors(tensors))
    if from_uri(str(directory / ADAPTER_WEIGHTS)) != tensors:
        msg = f"version {state.version} reads back otherwise than written; nothing was exported"
        raise WeightsDiffer(msg)


def merged_state(folder: RunFolder, state: LearnerState) -> LearnerState:
    """Return the state with its adapter merged into the base weights.

    Raises Unfit for another base, Refused if the recipe's adapter has changed.
    """
    lora = _lora_of(folder, AdapterAbout.of(state.weights))
    adapted = Adaptation.of(loaded(str(folder.policy)), lora, alone=True)
    adapted.load(state.weights, {})
    return replace(state, weights=merged(adapted.model))


def _lora_of(folder: RunFolder, about: AdapterAbout | None) -> Lora:
    lora = folder.learner().lora
    if lora is None:
        msg = (
            f"the recipe of run {folder.run_id!r} has no [policy.lora] any more, but its "
            "checkpoint holds an adapter; put it back"
        )
        raise Refused(msg)
    for field in ("rank", "alpha") if about else ():
        now, then = getattr(lora, field), getattr(about, field)
        if now != then:
            msg = (
                f"the recipe of run {folder.run_id!r} has {field} {now:g} in [policy.lora], but "
                f"its checkpoint holds an adapter of {field} {then:g}; put it back"
            )
            raise Refused(msg)
    return lora
