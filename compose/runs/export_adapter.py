"""Export of a run's adapter as a peft directory, or merged into the weights."""

from dataclasses import replace
from pathlib import Path

from rollcall.compose.runs.run_folder import RunFolder
from rollcall.schemas.adapter_weights import KIND, AdapterAbout
from rollcall.schemas.errors import Refused, WeightsDiffer
from rollcall.schemas.weights import from_uri, to_safetensors
from rollcall.trainer.checkpoints.learner_state import LearnerState
from rollcall.trainer.config.tables import Lora
from rollcall.trainer.learner.forward import loaded
from rollcall.trainer.weights.adapters import Adaptation, merged, peft_config

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
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
    (directory / WEIGHTS).write_bytes(to_safetensors(tensors))
    if from_uri(str(directory / WEIGHTS)) != tensors:
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
