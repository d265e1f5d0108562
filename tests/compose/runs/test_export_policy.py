"""A run's newest weights as a Hugging Face directory, on small policies and real checkpoints."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rollcall.compose.runs.export_policy import export
from rollcall.compose.runs.recipe import load_recipe
from rollcall.compose.runs.run_folder import RunFolder
from rollcall.inference.policy_dir import load_policy, make_policy
from rollcall.schemas.errors import Refused, Unfit
from rollcall.schemas.messages import Message
from rollcall.schemas.weights import weights_digest
from rollcall.trainer.checkpoints.checkpoint import Checkpoint, save
from rollcall.trainer.checkpoints.learner_state import LearnerState
from rollcall.trainer.weights.tensors import tensors_of
from tests.support import policies

Make = Callable[[Path], Path]


def run_of(directory: Path, make: Make = policies.lake) -> RunFolder:
    """A run that has just begun."""
    folder = RunFolder(directory, directory.name, "p", 7, {}, load_recipe("lake-any-start")[0])
    make(folder.policy)
    return folder


def trained(folder: RunFolder, version: int) -> str:
    """Save a checkpoint with weights of this version alone; return their digest."""
    weights = tensors_of(policies.weighted(folder.policy, version))
    state = LearnerState(version, version, 0, weights, {}, {})
    save(folder.directory / "checkpoints", Checkpoint(state, version - 1))
    return weights_digest(weights)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return run_of(tmp_path / "run-1")


def left_behind(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name.startswith("."))


@pytest.mark.parametrize(
    ("make", "text"),
    [(policies.lake, "s3 L <a> no"), (policies.writer, "Is 3 < 5?\nYes, it is.")],
    ids=["gpt2 and words", "qwen2 and characters"],
)
def test_exported_policy_loads_in_hugging_face_with_the_same_weights(
    make: Make, text: str, tmp_path: Path
) -> None:
    folder = run_of(tmp_path / "run-1", make)
    trained(folder, 1)
    digest = trained(folder, 2)

    version = export(folder, tmp_path / "out")

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out", local_files_only=True)
    ours = load_policy(folder.policy).tokenizer
    assert version == 2
    assert weights_digest(tensors_of(model)) == digest
    assert tokenizer.encode(text) == ours.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == ours.decode(ours.encode(text))


def test_export_is_a_policy_directory_with_its_origin(folder: RunFolder, tmp_path: Path) -> None:
    digest = trained(folder, 3)

    export(folder, tmp_path / "out")

    policy = load_policy(tmp_path / "out")
    about = json.loads((tmp_path / "out" / "rollcall.json").read_text())
    assert weights_digest(tensors_of(policy.model)) == digest
    assert about["exported"] == {"run_id": "run-1", "version": 3, "weights_digest": digest}
    assert about["template"] == policies.WORDS
    with pytest.raises(Refused, match="was not made from these arguments"):
        policies.lake(tmp_path / "out")


def test_export_keeps_the_precision_of_the_trained_weights(
    tmp_path: Path,
) -> None:
    def coarse(directory: Path) -> Path:
        return make_policy(
            directory, config=policies.GPT2, tokens="lake", template=policies.WORDS, seed=1,
            precision="bfloat16",
        )  # fmt: skip

    folder = run_of(tmp_path / "run-1", coarse)
    fine = run_of(tmp_path / "fine", policies.lake)
    digest = trained(fine, 1)
    (fine.directory / "checkpoints").rename(folder.directory / "checkpoints")

    export(folder, tmp_path / "out")

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", local_files_only=True)
    assert model.dtype == torch.float32
    assert weights_digest(tensors_of(model)) == digest


def test_export_does_not_contain_the_initial_weights(folder: RunFolder, tmp_path: Path) -> None:
    (folder.policy / "pytorch_model.bin").write_bytes(b"old")
    (folder.policy / "README.md").write_text("about")
    trained(folder, 1)

    export(folder, tmp_path / "out")

    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert "pytorch_model.bin" not in names
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= names
    began = load_file(folder.policy / "model.safetensors")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert began.keys() == found.keys()
    assert all(not torch.equal(began[name], found[name]) for name in found)


def test_exported_files_have_the_usual_permissions_of_new_files(
    folder: RunFolder, tmp_path: Path
) -> None:
    trained(folder, 1)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "file").touch()

    export(folder, tmp_path / "out")

    assert (tmp_path / "out").stat().st_mode == (tmp_path / "new").stat().st_mode
    modes = {path.stat().st_mode for path in (tmp_path / "out").iterdir()}
    assert modes == {(tmp_path / "new" / "file").stat().st_mode}


def test_damaged_checkpoint_is_skipped(folder: RunFolder, tmp_path: Path) -> None:
    trained(folder, 1)
    trained(folder, 2)
    (folder.directory / "checkpoints" / "v00000002" / "manifest.json").write_text("{}")

    assert export(folder, tmp_path / "out") == 1


def test_run_without_a_complete_checkpoint_is_refused_with_the_findings(
    folder: RunFolder, tmp_path: Path
) -> None:
    with pytest.raises(Refused, match=r"'run-1'.*checkpoints' yet$"):
        export(folder, tmp_path / "out")

    (folder.directory / "checkpoints" / "v00000001").mkdir(parents=True)
    with pytest.raises(Refused, match="passed over: v00000001: FileNotFoundError"):
        export(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_export_does_not_overwrite_existing_files(folder: RunFolder, tmp_path: Path) -> None:
    trained(folder, 1)
    full, file, empty, link = (tmp_path / name for name in ("full", "file", "empty", "link"))
    for directory in (full, empty):
        directory.mkdir()
    (full / "mine").write_text("keep")
    file.write_text("keep")
    link.symlink_to(empty)

    for taken in (full, file, link):
        with pytest.raises(Refused, match=f"{taken.name} is there already"):
            export(folder, taken)
    assert export(folder, empty) == 1

    assert (full / "mine").read_text() == file.read_text() == "keep"


def test_failed_export_leaves_no_files(folder: RunFolder, tmp_path: Path) -> None:
    other = run_of(tmp_path / "other", policies.writer)
    trained(other, 1)
    (other.directory / "checkpoints").rename(folder.directory / "checkpoints")

    with pytest.raises(Unfit, match="are these the weights of another model"):
        export(folder, tmp_path / "deep" / "out")

    assert not (tmp_path / "deep" / "out").exists()
    assert left_behind(tmp_path / "deep") == []


def test_exported_policy_renders_conversations_like_the_run(
    tmp_path: Path, folder: RunFolder
) -> None:
    trained(folder, 1)
    export(folder, tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out", local_files_only=True)
    said = [{"role": "user", "content": "s1 L"}, {"role": "assistant", "content": "R"}]

    text = tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=False)

    messages = [Message(each["role"], each["content"]) for each in said]
    wanted = load_policy(folder.policy).template.render(messages, first=True, ended=False)
    assert tokenizer.encode(text, add_special_tokens=False) == wanted
