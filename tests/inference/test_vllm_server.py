"""The engine `openai` on vLLM's own server: its answers are accepted and trainable."""

import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from rollcall.compose.processes import module, spawn
from rollcall.compose.services.service_process import free_port
from rollcall.compose.settings import ModelsSettings, OpenAISettings
from rollcall.compose.workers.engines import server_engine
from rollcall.inference.engine import Engine
from rollcall.inference.policy_dir import load_policy
from rollcall.schemas.messages import ModelAnswered
from rollcall.schemas.packed import logprobs_of
from tests.support.policies import after, body, call, failure, logprobs, run, tokens
from tests.support.vllm_environment import vllm_python
from tests.support.waiting import until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
KEY = "a key for tests"
KEY_ENV = "TEST_SERVER_KEY"
START_S = 480.0
GUARDED = module("tests.support.guarded")
TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}<a>"


@dataclass
class Server:
    """vLLM's own server."""

    url: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def ask(self, path: str, asked: dict[str, Any] | None = None) -> Any:
        """The server's own answer, without our engine."""
        request = urllib.request.Request(
            f"{self.url}/{path}",
            data=json.dumps(asked).encode() if asked else None,
            headers={"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)

    def answers(self) -> bool:
        assert self.process.poll() is None, self.words()
        try:
            return bool(self.ask("models"))
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def words(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


@pytest.fixture(scope="module")
def server(lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    python = vllm_python("the engine `openai` on its server")
    folder = tmp_path_factory.mktemp("server")
    (folder / "chat.jinja").write_text(TEMPLATE)
    port = free_port(())
    words = [
        *GUARDED,
        str(python),
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(lake),
        "--served-model-name",
        "m",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--api-key",
        KEY,
        "--enforce-eager",
        "--dtype",
        "float32",
        "--max-num-seqs",
        "16",
        "--kv-cache-memory-bytes",
        str(64 << 20),
        "--chat-template",
        str(folder / "chat.jinja"),
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TORCH_COMPILE_DISABLE": "1",  # it needs a compiler else, and a minute for a first token
    }
    process = spawn(words, folder / "log", environment=environment)
    server = Server(f"http://127.0.0.1:{port}/v1", process, folder / "log")
    try:
        until(server.answers, START_S, server.words)
        # Its CPU build dies by an illegal instruction where the first prompt is a short one.
        warm = {"model": "m", "prompt": [1] * 64, "max_tokens": 1, "logprobs": 1, "seed": 7}
        server.ask("completions", warm)
        yield server
    finally:
        end(process)


def end(process: "subprocess.Popen[bytes]") -> None:
    """End the process and all its children."""
    process.terminate()
    process.wait(30)


def asking(
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    directory: Path | None = None,
    *,
    key: str = KEY,
    model: str = "m",
) -> Engine:
    monkeypatch.setenv(KEY_ENV, key)
    options = OpenAISettings(
        base_url=server.url,
        model=model,
        api_key_env=KEY_ENV,
        retries=0,
        api="completions" if directory else "chat",
    )
    return server_engine("policy", directory, ModelsSettings(openai=options))


def test_the_servers_samples_are_accepted_with_ids_and_are_trainable(
    server: Server, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = asking(server, monkeypatch, lake)
    model = load_policy(lake).model
    calls = [call(f"r{n}", said="s1 " * (1 + n), max_tokens=12) for n in range(6)]

    answers = [answer.body for answer in run(engine, *calls)]

    for one, answered in zip(calls, answers, strict=True):
        assert isinstance(answered, ModelAnswered), answered
        assert (answered.untrainable, answered.engine) == ("", "openai")
        ids, sampled = tokens(after(one, answered)), tokens(answered.token_ids)
        said = server.ask(
            "completions",
            {
                "model": "m",
                "prompt": tokens(answered.added_ids),
                "max_tokens": 12,
                "logprobs": 1,
                "temperature": 1.0,
                "top_p": 1.0,
                "seed": one.seed % (1 << 31),
                "return_token_ids": True,
            },
        )["choices"][0]
        assert said["token_ids"] == sampled
        assert said["prompt_token_ids"] == tokens(answered.added_ids)
        found = torch.from_numpy(logprobs_of(answered.logprobs).copy())
        told = torch.tensor(said["logprobs"]["token_logprobs"])
        torch.testing.assert_close(found, told, atol=1e-5, rtol=0)
        full = logprobs(model, ids)[-len(sampled) :]
        expected = full.gather(1, torch.tensor(sampled)[:, None])[:, 0]
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    assert len({tokens(answered.token_ids)[0] for answered in answers}) > 1


def test_a_second_turn_continues_the_exact_tokens_of_the_first(
    server: Server, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = asking(server, monkeypatch, lake)
    first = call("r0", max_tokens=5)
    answered = body(engine, first)

    second = body(engine, call("r0", 1, said="s3", prefix=after(first, answered), max_tokens=5))

    assert (second.untrainable, len(tokens(second.token_ids))) == ("", 5)


def test_a_reshaped_distribution_makes_the_answer_untrainable(
    server: Server, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = body(asking(server, monkeypatch, lake), call(max_tokens=3, temperature=0.5))

    assert answered.untrainable == "raw_logprobs"


def test_the_chat_endpoint_gives_text_without_ids(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = body(asking(server, monkeypatch), call(said="s7", max_tokens=4))

    assert answered.untrainable == "no_token_ids"
    assert answered.text
    assert answered.finish_reason == "length"


@pytest.mark.parametrize(
    ("given", "sampling", "code", "words"),
    [
        ({"key": "another"}, {}, "unauthorised", KEY_ENV),
        ({"model": "n"}, {}, "unknown_model", "it has no model 'n'"),
        ({}, {"said": "s1 " * 200}, "too_long", "longer than"),
    ],
)
def test_a_refusal_of_the_server_fails_the_call_permanently(
    server: Server,
    lake: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, str],
    sampling: dict[str, Any],
    code: str,
    words: str,
) -> None:
    engine = asking(server, monkeypatch, lake, **given)

    failed = failure(engine, call(**sampling))

    assert (failed.code, failed.retriable) == (code, False)
    assert words in failed.message
    assert "\n" not in failed.message
    assert KEY not in failed.message


def test_a_stopped_server_is_reported_in_one_line_and_retriable(
    server: Server, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = asking(server, monkeypatch, lake)
    end(server.process)

    failed = failure(engine, call())

    assert (failed.code, failed.retriable) == ("server_away", True)
    assert "cannot be reached" in failed.message
    assert "\n" not in failed.message
