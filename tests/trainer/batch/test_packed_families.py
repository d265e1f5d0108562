"""Packed and separate rows give the same gradient in every family of models.

Or the family is found unfit when it is loaded, and its rows are padded.
"""

import numpy as np
import pytest
import torch
from torch import Tensor

from rollcall.trainer.batch.packing import Worth
from rollcall.trainer.batch.pieces import MicroBatch, padded, shared_micro_batches
from rollcall.trainer.batch.rows import Batch
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner.forward import forward
from rollcall.trainer.learner.sharing import sharing_of
from rollcall.trainer.rules.samples import Sample
from tests.support.families import model_of
from tests.support.scored_trajectories import VOCABULARY, make_batch, scored, sequence
from tests.support.tiers import cases

SLIDES = ["sliding_attention", "full_attention"]
MIX = {
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1, "num_key_value_heads": 4,
}  # fmt: skip
LATENT = {
    **MIX, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
    "v_head_dim": 8, "first_k_dense_replace": 1,
}  # fmt: skip
CHUNKS = {**MIX, "attention_chunk_size": 16, "intermediate_size_mlp": 64}
PLACES = 64
"""Positions that the models have."""
FAMILIES: dict[str, tuple[str, dict[str, object], int]] = {
    "gpt2": ("gpt2", {}, PLACES),
    "gpt_neox": ("gpt_neox", {}, PLACES),
    "gptj": ("gptj", {"rotary_dim": 4}, PLACES),
    "opt": ("opt", {"ffn_dim": 64, "word_embed_proj_dim": 32, "pad_token_id": 1}, PLACES),
    "phi": ("phi", {"num_key_value_heads": 4}, PLACES),
    "falcon": ("falcon", {"alibi": False}, PLACES),
    "llama": ("llama", {}, PLACES),
    "qwen2": ("qwen2", {}, PLACES),
    "qwen3": ("qwen3", {}, PLACES),
    "gemma": ("gemma", {}, PLACES),
    "granite": ("granite", {}, PLACES),
    "deepseek": ("deepseek_v3", LATENT, PLACES),
    "mistral": ("mistral", {"sliding_window": 16}, 16),
    "mixtral": ("mixtral", {**MIX, "sliding_window": 16}, 16),
    "phi3": ("phi3", {"sliding_window": 16}, 16),
    "gemma2": ("gemma2", {"sliding_window": 16, "layer_types": SLIDES}, 16),
    "gemma3": ("gemma3_text", {"sliding_window": 16, "layer_types": SLIDES}, 16),
    "gpt_oss": ("gpt_oss", {**MIX, "sliding_window": 16, "layer_types": SLIDES}, 16),
    "chunks": ("llama4_text", CHUNKS, 16),
    "steps of heat": ("llama4_text", {**CHUNKS, "no_rope_layers": [0, 0], "floor_scale": 16}, 16),
    "best tokens": (
        "hy_v4",
        {**LATENT, "index_topk": 48, "index_n_heads": 2, "index_head_dim": 16}, 48,
    ),
    "best blocks": (
        "minimax_m3_vl_text",
        {**MIX, "index_block_size": 16, "index_topk_blocks": 2, "index_n_heads": 2,
         "index_head_dim": 16, "layer_types": ["minimax_m3_sparse", "full_attention"]}, 16,
    ),
    "a mask of places": ("gpt_neo", {"attention_types": [[["global", "local"], 1]]}, 0),
    "alibi": ("bloom", {}, 0),
    "alibi or not": ("falcon", {"alibi": True}, 0),
    "alibi of places": ("mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2}, 0),
    "a state": ("mamba", {}, 0),
    "a state and a window": ("recurrent_gemma", {"lru_width": 32, "attention_window_size": 16}, 0),
    "a state and attention": (
        "qwen3_next",
        {**MIX, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
         "linear_value_head_dim": 8, "shared_expert_intermediate_size": 32,
         "layer_types": ["linear_attention", "full_attention"]}, 0,
    ),
    "convolution": ("lfm2", {"layer_types": ["conv", "full_attention"]}, 0),
}  # fmt: skip
"""The kind, what is its own, and tokens of the longest row that shares; 0 where none does."""


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def batch() -> Batch:
    """Rows of which some begin alike, within every window, some beyond it, and some strangers."""
    dice = np.random.default_rng(0)
    heads = [dice.integers(1, VOCABULARY, length).tolist() for length in (5, 20, 3)]
    shape = [(heads[0], n) for n in (2, 3, 20)] + [(heads[1], n) for n in (4, 12)]
    shape += [(heads[2], n) for n in (4, 3, 40)]
    shape += [(dice.integers(1, VOCABULARY, 2).tolist(), n) for n in (3, 4, 5, 6, 13, 14, 30)]
    made = []
    for number, (head, length) in enumerate(shape):
        ids = [*head, *dice.integers(1, VOCABULARY, length).tolist()]
        heard = min(length - 1, number % 4)  # in the midst of what was sampled
        told = sequence(ids, [0] * (len(head) - 1) + [1] + [0] * heard + [1] * (length - heard))
        record = scored(str(number), float(number % 3), sequences=(told,))
        made.append(Sample(record, 0, number, 0, number, 0, 1 + length - heard))
    return make_batch(made, LearnerConfig())


def gradient_of(model: torch.nn.Module, pieces: list[MicroBatch]) -> dict[str, Tensor]:
    """Of a sum of what sampled tokens are worth, each token other than the next."""
    model.zero_grad()
    for micro in pieces:
        lp_BT = forward(model, micro, 0.7).lp_BT
        rows_B1 = torch.tensor(micro.rows)[:, None]
        torch.sum(lp_BT * torch.cos(3.0 * rows_B1 + torch.arange(lp_BT.shape[1]))).backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", cases(FAMILIES, 4))
def test_packed_rows_give_the_same_gradient_or_are_not_packed(family: str, batch: Batch) -> None:
    kind, own, longest = FAMILIES[family]
    model = model_of(kind, **own)

    found = sharing_of(model)

    assert (found.longest if isinstance(found, Worth) else 0) == longest, found
    if not isinstance(found, Worth):
        return
    apart = gradient_of(model, [padded(batch, range(len(batch.rows)))])
    most = Worth(2**40, found.longest, found.widest)
    for fill in (False, True):
        pieces = list(shared_micro_batches(batch, most, 16384, fill=fill))
        assert len(pieces[-1].rows) > len(pieces[-1].shared.token_ids_PW)  # type: ignore[union-attr]
        packed = gradient_of(model, pieces)
        scale = max(float(gradient.abs().max()) for gradient in apart.values())
        for name, gradient in apart.items():
            off = float((packed[name] - gradient).abs().max())
            assert off <= 1e-5 * scale, (name, fill)
