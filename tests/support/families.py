"""A tiny model of any family that transformers knows."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.support.scored_trajectories import VOCABULARY

SHAPE = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "head_dim": 8,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "n_embd": 32, "n_layer": 2, "n_head": 4,
    "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None,
}  # fmt: skip


def model_of(kind: str, **other: object) -> torch.nn.Module:
    """A random model that has opinions, so that mistakes show."""
    torch.manual_seed(1)
    known = AutoConfig.for_model(kind)
    fields = {key: value for key, value in SHAPE.items() if _is_set(known, key)}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**fields, **other}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.eval()


def _is_set(config: object, key: str) -> bool:
    """Whether it is a field, and not what follows from others."""
    return hasattr(config, key) and not isinstance(getattr(type(config), key, None), property)
