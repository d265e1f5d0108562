"""Language models of a few thousand numbers as GGUF files, quantised as llama.cpp does it."""

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, INNER, HEADS, KV_HEADS = 32, 64, 4, 2
CHATML = (
    "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def tensors() -> dict[str, Any]:
    """The names and shapes of a llama of one layer, as llama.cpp has them."""
    rng = np.random.default_rng(5)
    shapes = {
        "token_embd": (len(tokens()), WIDTH), "blk.0.attn_q": (WIDTH, WIDTH),
        "blk.0.attn_k": (WIDTH // 2, WIDTH), "blk.0.attn_v": (WIDTH // 2, WIDTH),
        "blk.0.attn_output": (WIDTH, WIDTH), "blk.0.ffn_gate": (INNER, WIDTH),
        "blk.0.ffn_up": (INNER, WIDTH), "blk.0.ffn_down": (WIDTH, INNER),
    }  # fmt: skip
    numbers = {f"{name}.weight": rng.normal(size=shape) for name, shape in shapes.items()}
    norms = ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm")
    numbers |= {f"{name}.weight": np.ones(WIDTH) for name in norms}
    return {name: array.astype(np.float32) for name, array in numbers.items()}


def tokens() -> list[str]:
    """Control tokens, and a character for every byte, as byte-level tokenizers spell them."""
    from tokenizers.pre_tokenizers import ByteLevel

    return [*CONTROL, *sorted(ByteLevel.alphabet()), "ab"]


def write(
    file: Path, *, architecture: str = "llama", without: str = "",
    named: int | None = None, other: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Write one; return its tensors as quantised. `named`: how many tokens it says there are."""
    from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quants

    writer = GGUFWriter(file, architecture)
    writer.add_name("tiny")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(named or len(tokens()))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens())
    kinds = [TokenType.CONTROL] * len(CONTROL) + [TokenType.NORMAL] * (len(tokens()) - len(CONTROL))
    writer.add_token_types(kinds)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHATML)
    kept = {}
    for name, array in {**tensors(), **(other or {})}.items():
        if name == without:
            continue
        kind = GGMLQuantizationType.Q4_1 if array.ndim == 2 else GGMLQuantizationType.F32
        packed = quants.quantize(array, kind)
        kept[name] = quants.dequantize(packed, kind)
        writer.add_tensor(name, packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return kept


def wheel(folder: Path, *ggufs: Path, licence: str = "Do as you like.\n") -> str:
    """Wrap files as release 1.0 of `tiny-model`; return the wheel's digest."""
    folder.mkdir(parents=True, exist_ok=True)
    info = "tiny_model-1.0.dist-info"
    texts = {
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/LICENSE": licence,
        f"{info}/RECORD": "",
    }
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in ggufs:
            archive.write(file, f"tiny_model/{file.name}")
        for name, text in texts.items():
            archive.writestr(name, text)
    return hashlib.sha256(path.read_bytes()).hexdigest()
