"""Agents by name: installed completely or not at all, listed, checked, refused."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from rollcall.compose.agents.installation import (
    UNTRIED,
    install,
    listing,
    mark,
    point_to,
    refusal,
    requirements,
)
from rollcall.compose.processes import wait_until
from rollcall.sandbox.agents.shipped import SHIPPED, InstalledAgent, installed_agent, interpreter
from rollcall.schemas.errors import Refused, Unavailable, WorkFailed
from tests.support import local_index
from tests.support.command_line import call, refused, rollcall

AGENT = """
import json, urllib.request

class Tool: pass
class LogLevel: ERROR = 0
class OpenAIModel:
    def __init__(self, name, api_base, api_key):
        self.place = api_base, api_key
class CodeAgent:
    def __init__(self, tools, model, **_):
        self.tools, self.model = tools, model
    def run(self, prompt):
        url, key = self.model.place
        body = {"model": "policy", "messages": [{"role": "user", "content": prompt}]}
        request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(),
                                         {"Authorization": f"Bearer {key}"})
        first = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
        assert "act('look')" in first
        return self.tools[0].forward("look") and RESULT
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "agents"


def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: str, version: str) -> None:
    source = AGENT.replace("RESULT", repr(result))
    local_index.wheel(tmp_path / "index", "smolagents", version, source)
    local_index.wheel(tmp_path / "index", "openai", "1.0", "")
    local_index.use(tmp_path / "index", monkeypatch)


def test_agent_is_installed_checked_and_replaced_by_another_version(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(tmp_path, monkeypatch, "the end", "1.26.3")
    name, wanted = requirements("smolagents")
    environment = {"ROLLCALL_CACHE_DIR": str(tmp_path / "cache")}

    # When two install it at once
    with ThreadPoolExecutor() as pool:
        made = list(pool.map(lambda _: install(home, name, wanted), range(2)))

    # Then one has made it, and it is not used before it was tried
    assert sorted(new for _, new in made) == [False, True]
    assert made[0][0] == made[1][0] == installed_agent(home, name)
    with pytest.raises(WorkFailed, match=UNTRIED):
        interpreter(home, name)
    done = rollcall("agents", "install", "smolagents", cwd=tmp_path, **environment)
    assert (done.returncode, done.stdout) == (0, "smolagents 1.26.3 is ready\n"), done.stderr
    assert interpreter(home, name) == made[0][0].interpreter
    (ready,) = [row for row in listing(home) if row.name == name]
    assert (ready.version, ready.state) == ("1.26.3", "ready")

    # And another version that fails its check is reported as broken, not used
    offered(tmp_path, monkeypatch, "something else", "1.25.0")
    done = rollcall("agents", "install", "smolagents==1.25.0", cwd=tmp_path, **environment)
    assert done.returncode == 1
    wrong = "it handed in 'something else', 'the end' was expected"
    assert done.stderr == f"rollcall: agent 'smolagents' failed its check: {wrong}\n"
    with pytest.raises(WorkFailed, match="something else"):
        interpreter(home, name)
    shown = rollcall("agents", "list", "--json", cwd=tmp_path, **environment)
    (row,) = [row for row in json.loads(shown.stdout) if row["name"] == name]
    assert (row["version"], row["state"]) == ("1.25.0", f"broken: {wrong}")
    assert len([path for path in (home / name).iterdir() if path.is_dir()]) == 2


def test_killed_or_failed_install_is_not_taken_for_an_installation(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**os.environ, "ROLLCALL_CACHE_DIR": str(tmp_path / "cache")}
    command = [
        sys.executable,
        "-P",
        "-m",
        "rollcall.compose.cli",
        "agents",
        "install",
        "smolagents",
    ]

    with subprocess.Popen(command, cwd=tmp_path, env=environment) as process:
        assert wait_until(lambda: any(home.glob("smolagents/*/pyvenv.cfg")), 60)
        process.send_signal(signal.SIGKILL)

    assert installed_agent(home, "smolagents") is None
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    done = rollcall("agents", "install", "smolagents", cwd=tmp_path, **environment)
    assert "the package index does not answer" in refused(done)
    assert installed_agent(home, "smolagents") is None
    assert list((home / "smolagents").iterdir()) == []


def test_next_install_removes_files_of_a_killed_install(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an agent, and an install of another version that is killed while pip is at work
    offered(tmp_path, monkeypatch, "the end", "1.26.3")
    name, wanted = requirements("smolagents")
    there, _ = install(home, name, wanted)
    command = [
        sys.executable,
        "-P",
        "-m",
        "rollcall.compose.cli",
        "agents",
        "install",
        "smolagents==1.2",
    ]
    environment = {**os.environ, "ROLLCALL_CACHE_DIR": str(tmp_path / "cache")}
    with subprocess.Popen(command, cwd=tmp_path, env=environment) as process:
        assert wait_until(lambda: len(list(home.glob("smolagents/*/pyvenv.cfg"))) == 2, 60)
        process.send_signal(signal.SIGKILL)
    (left,) = home.glob("smolagents/*.making")

    # Then none of its processes is alive, and its files are removed
    assert wait_until(lambda: running_below(left.with_suffix("")) == [], 20)
    assert install(home, name, wanted) == (there, False)
    assert {path.name for path in (home / name).iterdir()} == {
        there.directory.name,
        "installed.json",
    }


def running_below(directory: Path) -> list[str]:
    """Command lines that name a directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = path.read_bytes().decode(errors="replace")
            found += [line] if str(directory) in line else []
    return found


def test_pip_errors_become_one_line_with_a_remedy() -> None:
    away = "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError'"
    none = "ERROR: Could not find a version that satisfies the requirement smolagents==9 (from "
    other = "ERROR: Ignored the following versions that require a different python version: 1.26"
    full = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"

    found = [
        refusal("smolagents", "smolagents>=1.26,<1.27", away + "\n" + none + "versions: none)"),
        refusal("smolagents", "smolagents==1.2.7", none + "versions: 1.0, 1.2.6)"),
        refusal("smolagents", "smolagents>=1.26,<1.27", other + "\n" + none + "versions: 1.0)"),
        refusal("smolagents", "smolagents>=1.26,<1.27", "Collecting smolagents\n" + full),
        refusal("smolagents", "smolagents>=1.26,<1.27", ""),
    ]

    assert [type(error) for error in found] == [Unavailable, *[Refused] * 4]
    texts = [str(error) for error in found]
    assert "does not answer; look at network" in texts[0]
    assert texts[1].startswith("there is no version 1.2.7 of smolagents")
    assert texts[1].endswith("did you mean '1.2.6'?")
    assert "needs another one than Python 3." in texts[2]
    assert "No space left on device" in texts[3]
    assert all(text.count("\n") == 0 for text in texts)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("mini-swe", "unknown agent 'mini-swe'; did you mean 'mini-swe-agent'?"),
        ("", "unknown agent ''; known are command, "),
        ("../../tmp", "unknown agent"),
        ("python", "agent 'python' needs no installing"),
        ("smolagents==", "'smolagents==' names no version; write smolagents==1.2.3"),
        ("smolagents==1 --index-url=x", "names no version"),
    ],
)
def test_uninstallable_name_is_refused_with_the_nearest_match(spec: str, words: str) -> None:
    with pytest.raises(Refused) as error:
        requirements(spec)

    assert words in str(error.value)


def test_pinned_version_replaces_only_the_bounds_of_the_agent() -> None:
    name, wanted = requirements("mini-swe-agent==2.4.1")

    assert name == "mini-swe-agent"
    assert wanted == ("mini-swe-agent==2.4.1", *SHIPPED[name].requirements[1:])
    assert requirements("smolagents==1.1")[1] == ("smolagents[openai]==1.1",)
    assert all(
        "<" in requirement for agent in SHIPPED.values() for requirement in agent.requirements
    )


@pytest.mark.parametrize("text", ["", "{", "[]", '{"directory": "x"}', '{"directory": 1}'])
def test_invalid_install_pointer_means_not_installed(home: Path, text: str) -> None:
    (home / "smolagents").mkdir(parents=True)
    (home / "smolagents" / "installed.json").write_text(text)

    assert installed_agent(home, "smolagents") is None
    mark(home, "smolagents", "")
    assert installed_agent(home, "smolagents") is None


def test_manually_removed_environment_is_not_installed(home: Path) -> None:
    point_to(home, "smolagents", InstalledAgent(home / "smolagents" / "gone", "1.0", (), ""))

    assert installed_agent(home, "smolagents") is None


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["check", "smolagent"], "unknown agent 'smolagent'; did you mean 'smolagents'?"),
        (["check", "smolagents"], "run `rollcall agents install smolagents`"),
        (["check", "python"], "agent 'python' needs agent_config.function, 'FILE.py:FUNCTION'"),
        (["check", "command", "--config", '{"argv": []}'], "a list of words such as"),
        (["check", "command", "--config", "[]"], "--config must be a JSON object, found '[]'"),
        (["check", "command", "--config", "{"], "--config is not JSON"),
    ],
)
def test_impossible_agent_check_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], line: str
) -> None:
    monkeypatch.setenv("ROLLCALL_CACHE_DIR", str(tmp_path))

    with pytest.raises(Refused) as error:
        call(None, "agents", *words)

    assert line in str(error.value)


def test_user_function_is_checked_without_a_rollout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROLLCALL_CACHE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def run(task, url, key):\n    return task['prompt'].upper()\n")
    Path("bad.py").write_text("def run(task, url, key):\n    raise ValueError('no\\nway')\n")

    call(None, "agents", "check", "python", "--config", '{"function": "mine.py:run"}')
    assert "result 'LOOK AROUND.'" in capsys.readouterr().out
    assert call(None, "agents", "check", "python", "--config", '{"function": "bad.py:run"}') == 1
    assert "it ended with code 1, saying 'way'" in capsys.readouterr().err
