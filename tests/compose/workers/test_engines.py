"""Which engine is built: by name, by module:function, or refused in one line."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollcall.compose.settings import ModelsSettings
from rollcall.compose.workers.engines import check_models, load_engine, weights_engine
from rollcall.inference import vllm_place
from rollcall.inference.scripted import ScriptedEngine
from rollcall.schemas.errors import Refused


class Mine(ScriptedEngine):
    """A custom engine; it keeps its arguments."""

    def __init__(self, policy_id: str, directory: Path, **told: Any) -> None:
        super().__init__(policy_id, lambda call: "mine", version=-1)
        self.told = directory, told


def half(policy_id: str, directory: Path, *, device: str, max_batch: int, threads: int) -> Any:
    del directory, device, max_batch, threads
    return SimpleNamespace(policy_id=policy_id, version=-1, wait_s=0.0, add=print, step=print)


def other(policy_id: str, directory: Path, **told: Any) -> ScriptedEngine:
    return Mine(policy_id + "-2", directory, **told)


def without_options(policy_id: str, directory: Path) -> ScriptedEngine:
    return Mine(policy_id, directory)


def test_custom_engine_receives_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    models = ModelsSettings(engine="test_engines:Mine", device="tpu", max_batch=7, threads=3)

    engine = weights_engine("p", Path("/weights"), models)

    assert type(engine).__name__ == "Mine"
    assert engine.told == (  # type: ignore[attr-defined]
        Path("/weights"),
        {"device": "tpu", "max_batch": 7, "threads": 3},
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("openai", "'/weights' announces weights, and those behind engine 'openai' are not ours"),
        ("tranformers", "unknown engine 'tranformers'.*transformers"),
        ("", "unknown engine ''"),
        ("nowhere:Engine", "module 'nowhere' cannot be imported"),
        ("test_engines:missing", "has no 'missing'"),
        ("test_engines:without_options", "cannot be called .* threads=: .*device"),
        (
            "test_engines:half",
            "SimpleNamespace without .*busy, expire, abort, replica, stage, adopt",
        ),
        ("test_engines:other", "serves 'p-2'; it was asked for 'p'"),
    ],
)
def test_invalid_engine_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)

    with pytest.raises(Refused, match=said) as refused:
        weights_engine("p", Path("/weights"), ModelsSettings(engine=name))

    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("models", "said"),
    [
        (ModelsSettings(engine="vlm"), "unknown engine 'vlm'"),
        (ModelsSettings(engine="vllm"), "needs vLLM, .* `make vllm` builds .* set models.python"),
        (ModelsSettings(engine="vllm", python="/nowhere/python"), "'/nowhere/python', .* program"),
        (ModelsSettings(python=str(Path(__file__).parent)), "which is no program"),
        (ModelsSettings(engine="vllm", python="/bin/true", device="cuda"), "serves on a CPU"),
        (ModelsSettings(engine="vllm", python=sys.executable), "which .*python.* has not; `make"),
        (ModelsSettings(engine="vllm", python="/bin/false"), "which /bin/false has not"),
    ],
)
def test_unservable_run_is_refused_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, models: ModelsSettings, said: str
) -> None:
    monkeypatch.setattr(vllm_place, "find_spec", lambda name: None)

    with pytest.raises(Refused, match=said):
        check_models(models)


def test_named_python_is_the_one_that_must_have_the_engine(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").touch()
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o700)

    check_models(ModelsSettings(engine="vllm", python=str(python)))


def test_default_engine_is_the_transformers_one() -> None:
    assert load_engine(ModelsSettings().engine).__name__ == "TransformersEngine"
