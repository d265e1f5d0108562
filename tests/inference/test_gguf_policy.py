"""A GGUF becomes a usable policy directory, or nothing is written."""

from pathlib import Path

import numpy as np
import pytest

from rollcall.inference.gguf_policy import make_gguf_policy
from rollcall.inference.policy_dir import load_policy
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import Message
from tests.support import tiny_gguf

CHATML = {"kind": "chatml"}


def test_weights_tokens_and_template_come_from_the_file(tmp_path: Path) -> None:
    kept = tiny_gguf.write(tmp_path / "tiny.gguf")

    made = make_gguf_policy(
        tmp_path / "tiny.gguf", tmp_path / "deep" / "out", template=CHATML, kept={"LICENSE": b"l"}
    )

    policy = load_policy(tmp_path / "deep" / "out")
    weights = policy.model.state_dict()
    assert made == sum(array.size for array in kept.values())
    pairs = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
        "model.layers.0.mlp.down_proj.weight": "blk.0.ffn_down.weight",
    }
    for name, source in pairs.items():
        np.testing.assert_array_equal(weights[name].numpy(), kept[source])
    assert (policy.precision, policy.context, set(policy.end_ids)) == ("float32", 64, {2})
    ids = policy.template.render([Message("user", "ab <|im_end|>")], first=True, ended=False)
    assert policy.tokenizer.decode(ids).endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert ids.count(2) == 1  # what is spelt out in a content is no control token
    assert (tmp_path / "deep" / "out" / "LICENSE").read_bytes() == b"l"
    modes = {path.stat().st_mode for path in (tmp_path / "deep" / "out").iterdir()}
    assert len(modes) == 1


def test_the_files_own_chat_template_is_the_default(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "tiny.gguf")

    make_gguf_policy(tmp_path / "tiny.gguf", tmp_path / "out", template={"kind": "jinja"}, kept={})

    template = load_policy(tmp_path / "out").template
    assert template.render([Message("user", "b")], first=True, ended=False)[0] == 1


def damaged(file: Path, how: str) -> None:
    """Write a file with something wrong with it."""
    if how in ("empty", "text"):
        file.write_text("" if how == "empty" else "GGML and more" * 9)
        return
    tiny_gguf.write(
        file,
        architecture="unheard" if how == "unheard" else "llama",
        without="blk.0.ffn_up.weight" if how == "part" else "",
        named=8 if how == "few" else None,
        other={"output_norm.weight": np.full(32, np.nan, np.float32)} if how == "nan" else None,
    )
    if how == "cut":
        file.write_bytes(file.read_bytes()[:-4000])


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("empty", "bad.gguf is no GGUF that transformers can read"),
        ("text", "bad.gguf is no GGUF that transformers can read"),
        ("cut", "bad.gguf is no GGUF that transformers can read"),
        ("unheard", "architecture unheard is not supported"),
        ("part", "bad.gguf lacks 1 of the model's tensors, the first is model.layers.0.mlp.up_pr"),
        ("few", "bad.gguf"),
        ("nan", "model.norm.weight of bad.gguf holds numbers that are not finite"),
    ],
)
def test_an_unreadable_file_is_refused_by_name(tmp_path: Path, how: str, said: str) -> None:
    damaged(tmp_path / "bad.gguf", how)

    with pytest.raises(Refused) as error:
        make_gguf_policy(tmp_path / "bad.gguf", tmp_path / "x" / "out", template=CHATML, kept={})

    assert said in str(error.value)
    assert str(error.value).count("\n") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["bad.gguf"]


def test_a_template_without_matching_tokens_is_refused(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "tiny.gguf")

    with pytest.raises(Refused, match=r"tiny\.gguf: "):
        make_gguf_policy(
            tmp_path / "tiny.gguf",
            tmp_path / "out",
            template={"kind": "roles", "before": {"assistant": ""}, "end": "abc"},
            kept={},
        )

    assert not (tmp_path / "out").exists()
