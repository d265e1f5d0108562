"""A server with the OpenAI API, named by settings: invalid ones are refused in one line."""

from pathlib import Path
from typing import Any

import pytest

from rollcall.compose.conductor.in_memory import run_in_memory
from rollcall.compose.runs.recipe import load_recipe
from rollcall.compose.settings import ModelsSettings, OpenAISettings, Settings
from rollcall.compose.workers.engines import check_recipe, server_engine
from rollcall.schemas.errors import Refused

KEY = "sk-very-secret"
GIVEN = {"base_url": "http://127.0.0.1:1/v1", "model": "m"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"base_url": ""}, "base_url is ''; give the address .* http://127.0.0.1:8000/v1"),
        ({"base_url": "127.0.0.1:8000"}, "base_url is '127.0.0.1:8000'"),
        ({"base_url": "http://[::1"}, r"base_url is 'http://\[::1'"),
        ({"base_url": f"http://me:{KEY}@host/v1"}, "for host holds a user or password"),
        ({"model": ""}, "models.openai.model is empty"),
        ({"api_key_env": "NOT_SET_KEY"}, "names NOT_SET_KEY, which is not set; export"),
        ({"api_key_env": "ODD_KEY"}, "names ODD_KEY, which holds what no header can carry"),
        ({"api": "completions"}, "sends token ids; name by --directory a folder"),
    ],
)
def test_settings_without_a_valid_server_are_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], said: str
) -> None:
    monkeypatch.setenv("ODD_KEY", f"{KEY}\nX-Other: yes")
    models = ModelsSettings(openai=OpenAISettings(**(GIVEN | options)))

    with pytest.raises(Refused, match=said) as refused:
        server_engine("p", None, models)

    assert "\n" not in str(refused.value)
    assert KEY not in str(refused.value)


def test_tokenizer_is_refused_for_the_chat_api() -> None:
    with pytest.raises(Refused, match="api is chat, which needs no tokenizer"):
        server_engine("p", Path("/policy"), ModelsSettings(openai=OpenAISettings(**GIVEN)))


def test_training_recipe_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path, models=ModelsSettings(engine="openai"))

    with pytest.raises(Refused, match=r"recipe 'lake-any-start' announces weights.*models\.engine"):
        run_in_memory("lake-any-start", settings, seed=1, summary=None)

    assert list(tmp_path.iterdir()) == []


def test_recipe_with_scripted_answers_needs_no_engine() -> None:
    check_recipe("openai", load_recipe("repairs")[0])
