from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from rollcall.inference.policy_dir import load_policy, make_policy
from rollcall.schemas.errors import Refused
from tests.support.policies import CHARACTERS, CONFIGS, GPT2, WORDS

WEIGHTS = "model.safetensors"


def make(directory: Path, **changes: object) -> Path:
    given = {"config": GPT2, "tokens": "lake", "template": WORDS, "seed": 1}
    return make_policy(directory, **{**given, **changes})


def test_the_seed_determines_every_bit(tmp_path: Path) -> None:
    first, again, other = make(tmp_path / "a"), make(tmp_path / "b"), make(tmp_path / "c", seed=2)

    assert (first / WEIGHTS).read_bytes() == (again / WEIGHTS).read_bytes()
    assert (first / WEIGHTS).read_bytes() != (other / WEIGHTS).read_bytes()


def test_making_the_same_policy_again_changes_nothing(tmp_path: Path) -> None:
    made = make(tmp_path / "lake")
    written = (made / WEIGHTS).stat().st_mtime_ns

    make(tmp_path / "lake")

    assert (made / WEIGHTS).stat().st_mtime_ns == written
    assert [path.name for path in tmp_path.iterdir()] == ["lake"]


def test_a_different_policy_is_not_overwritten(tmp_path: Path) -> None:
    make(tmp_path / "lake")

    with pytest.raises(Refused, match="there already"):
        make(tmp_path / "lake", seed=2)


def test_a_policy_that_cannot_be_made_leaves_no_files(tmp_path: Path) -> None:
    with pytest.raises(Refused):
        make(tmp_path / "lake", template={"kind": "words", "bos": "<bos>"})

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("model", list(CONFIGS))
def test_tokenizers_are_read_from_disk_unchanged(tmp_path: Path, model: str) -> None:
    config = CONFIGS[model]
    words = make(tmp_path / "words", config={**config, "vocab_size": 32})
    letters = make(
        tmp_path / "letters",
        config={**config, "vocab_size": 128},
        tokens="characters",
        template=CHARACTERS,
    )

    tokenizer = load_policy(words).tokenizer
    assert tokenizer.encode("s7 no L", add_special_tokens=False) == [14, 6, 2]
    assert tokenizer.decode([14, 6, 2]) == "s7 no L"
    assert tokenizer.decode(list(range(32))).split()[-1] == "<unused31>"

    tokenizer = load_policy(letters).tokenizer
    text = " two\n + é <a>"
    ids = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text.replace("é", "<unk>")


def test_hugging_face_loads_the_directory(lake: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(lake, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(lake, local_files_only=True)

    assert model.config.vocab_size == 32
    assert tokenizer("s7")["input_ids"] == [14]


def test_the_lakes_policy_has_the_parameters_of_the_design(tmp_path: Path) -> None:
    policy = load_policy(make(tmp_path / "lake", config={**GPT2, "n_embd": 128}))

    assert sum(parameter.numel() for parameter in policy.model.parameters()) == 413_184
    assert (policy.context, policy.end_ids, policy.precision) == (96, {0}, "float32")


def test_bfloat16_weights_stay_bfloat16(tmp_path: Path) -> None:
    assert load_policy(make(tmp_path / "half", precision="bfloat16")).precision == "bfloat16"


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": "nonsense"},
        {"tokens": ["a", "a"]},
        {"config": {**GPT2, "vocab_size": 3}},
        {"precision": "int3"},
        {"config": {"model_type": "nonsense"}},
    ],
)
def test_invalid_arguments_are_refused(tmp_path: Path, wrong: dict) -> None:
    with pytest.raises(Refused):
        make(tmp_path / "wrong", **wrong)


def test_a_directory_without_a_policy_is_refused_without_network(
    tmp_path: Path,
) -> None:
    with pytest.raises(Refused, match=r"config\.json"):
        load_policy(tmp_path / "gpt2")
