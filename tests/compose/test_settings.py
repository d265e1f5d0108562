"""The command line overrides the environment, which overrides the file; unknown names fail."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from rollcall.compose.settings import FILE, PREFIX, Settings, load_settings, reject_unknown
from rollcall.schemas.errors import Refused

Write = Callable[[str], None]


@pytest.fixture(autouse=True)
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder and no variable of ours, independent of the machine."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.upper().startswith(PREFIX):
            monkeypatch.delenv(name)


@pytest.fixture
def write() -> Write:
    """Writes the settings file of the folder that the test runs in."""
    return lambda text: (FILE.write_text(text), None)[1]


def refusal() -> str:
    with pytest.raises(Refused) as raised:
        load_settings()
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_all_settings_have_defaults() -> None:
    settings = load_settings()

    assert settings.prefix == "rl."
    assert settings.kafka.bootstrap_servers == ""
    assert settings.state() == Path.cwd() / ".rollcall"
    assert settings.cache() == Path.home() / ".cache/rollcall"


def test_command_line_overrides_variables_and_variables_override_the_file(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        "prefix = 'file.'\nstate_dir = 'file'\ncache_dir = 'file'\n"
        "[agents]\nmax_live = 1\nmax_running_per_user = 1\nprogram_timeout_s = 1\n"
    )
    monkeypatch.setenv("ROLLCALL_PREFIX", "variable.")
    monkeypatch.setenv("ROLLCALL_STATE_DIR", "variable")
    monkeypatch.setenv("ROLLCALL_AGENTS__MAX_LIVE", "2")
    monkeypatch.setenv("ROLLCALL_AGENTS__MAX_RUNNING_PER_USER", "2")

    settings = load_settings(prefix="line.", agents={"max_live": 3})

    assert (settings.prefix, settings.state_dir, settings.cache_dir) == (
        "line.", Path("variable"), Path("file"),
    )  # fmt: skip
    agents = settings.agents
    assert (agents.max_live, agents.max_running_per_user, agents.program_timeout_s) == (3, 2, 1)


@pytest.mark.parametrize("source", ["line", "variable", "file"])
def test_each_source_alone_is_used(
    source: str, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    if source == "variable":
        monkeypatch.setenv("ROLLCALL_MODELS__DEVICE", "cuda")
    if source == "file":
        write("[models]\ndevice = 'cuda'\n")

    settings = load_settings(**({"models": {"device": "cuda"}} if source == "line" else {}))

    assert settings.models.device == "cuda"
    assert settings.models.threads == 1


def test_client_settings_are_passed_through_by_their_own_names(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("[kafka.client]\n'security.protocol' = 'SSL'\n")
    monkeypatch.setenv("ROLLCALL_REGISTRY__CLIENT", '{"basic.auth.user.info": "me:secret"}')

    settings = load_settings()

    assert settings.kafka.client == {"security.protocol": "SSL"}
    assert settings.registry.client == {"basic.auth.user.info": "me:secret"}


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("ROLLCALL_PREFX", "ROLLCALL_PREFIX"),
        ("ROLLCALL_KAKFA__CLIENT", "ROLLCALL_KAFKA"),
        ("ROLLCALL_AGENTS_MAX_LIVE", "ROLLCALL_AGENTS"),
        ("rollcall_prefx", "ROLLCALL_PREFIX"),
        ("ROLLCALL_PREFIX__X", "ROLLCALL_PREFIX"),
        ("ROLLCALL_STATE_DIR__", "ROLLCALL_STATE_DIR"),
    ],
)
def test_unknown_variable_is_refused_with_the_nearest_known_name(
    name: str, nearest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "x")

    said = refusal()

    assert said == f"unknown setting '{name.upper()}'; did you mean '{nearest}'?"


def test_key_without_a_near_match_is_refused_with_all_known_names(write: Write) -> None:
    write("xyz = 1")

    assert (
        refusal() == f"unknown setting 'xyz'; known are {', '.join(sorted(Settings.model_fields))}"
    )


def test_foreign_variables_are_ignored_and_lower_case_names_are_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KAFKA_PREFX", "x")
    monkeypatch.setenv("rollcall_prefix", "small.")

    assert load_settings().prefix == "small."


def test_nested_variable_is_refused_with_its_nearest_sibling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROLLCALL_KAFKA__BOOTSTRAP", "localhost:9092")

    assert refusal() == (
        "unknown setting 'kafka.bootstrap'; did you mean 'kafka.bootstrap_servers'?"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prefixx = 'a'", "unknown setting 'prefixx'; did you mean 'prefix'?"),
        ("[agent]", "unknown setting 'agent'; did you mean 'agents'?"),
        (
            "[agents]\nmax_lives = 3",
            "unknown setting 'agents.max_lives'; did you mean 'agents.max_live'?",
        ),
    ],
)
def test_unknown_file_key_is_refused_with_the_nearest_known_name(
    text: str, says: str, write: Write
) -> None:
    write(text)

    assert refusal() == says


def test_unknown_command_line_option_is_refused_too() -> None:
    with pytest.raises(Refused, match=r"'models\.threats'; did you mean 'models\.threads'"):
        load_settings(models={"threats": 2})


@pytest.mark.parametrize(
    ("text", "name", "found"),
    [
        ("[agents]\nmax_live = 'many'", "agents.max_live", "'many'"),
        ("[agents]\nmax_live = -1", "agents.max_live", "-1"),
        ("[agents]\nprogram_timeout_s = 0", "agents.program_timeout_s", "0"),
        ("[models]\nmax_batch = 0", "models.max_batch", "0"),
        ("kafka = 3", "kafka", "3"),
        ("[[agents]]\nmax_live = 1", "agents", "[{'max_live': 1}]"),
        ("[kafka.client]\n'linger.ms' = 5", "kafka.client.linger.ms", "5"),
        ("[rewards]\nscorers = [1]", "rewards.scorers.0", "1"),
        ("state_dir = 5", "state_dir", "5"),
        ("[environments]\nbox = 'lokal'", "environments.box", "'lokal'"),
        ("[rewards]\nbox = ''", "rewards.box", "''"),
    ],
)
def test_value_of_the_wrong_type_is_named_with_the_found_value(
    text: str, name: str, found: str, write: Write
) -> None:
    write(text)

    said = refusal()

    assert said.startswith(f"setting {name}: ")
    assert said.endswith(f"found {found}")


def test_all_errors_are_reported_at_once(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("prefixx = 'a'\n[agents]\nmax_live = 'many'")
    monkeypatch.setenv("ROLLCALL_MODELS__THREADS", "none")

    said = refusal().split("; ")

    assert any("agents.max_live" in part for part in said)
    assert any("models.threads" in part for part in said)
    assert any("prefixx" in part for part in said)


@pytest.mark.parametrize(
    "content",
    [b"prefix = ", b"prefix", b"[agents\n", b"a = 1\na = 2", b"\xff\xfe", b"prefix = '\xe4.'"],
)
def test_invalid_toml_file_is_refused_by_name_in_one_line(content: bytes) -> None:
    FILE.write_bytes(content)

    assert refusal().startswith("rollcall.toml is not TOML: ")


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("ROLLCALL_KAFKA", "kafka"),
        ("ROLLCALL_KAFKA__CLIENT", "kafka"),
        ("ROLLCALL_REWARDS__SCORERS", "rewards"),
    ],
)
def test_table_or_list_in_a_variable_must_be_json(
    name: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "a, b")

    said = refusal()

    assert f'"{table}"' in said
    assert "JSON" in said


def test_list_in_a_variable_is_read_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLCALL_REWARDS__SCORERS", '["exact", "length"]')

    assert load_settings().rewards.scorers == ["exact", "length"]


def test_settings_are_frozen_at_every_level() -> None:
    settings = load_settings()
    tables = [each for _, each in settings if isinstance(each, BaseModel)]

    with pytest.raises(ValidationError, match="frozen"):
        settings.prefix = "other."
    for table in tables:
        name = next(iter(type(table).model_fields))
        with pytest.raises(ValidationError, match="frozen"):
            setattr(table, name, getattr(table, name))


def test_check_for_unknown_variables_reads_only_the_given_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROLLCALL_PREFX", "x")

    reject_unknown({"ROLLCALL_IMAGES": "/where images are"}, ["agents"], ["agents"])
    reject_unknown({"ROLLCALL_AGENTS__X": "", "PATH": ""}, ["agents", "prefix"], ["agents"])
    with pytest.raises(Refused):
        reject_unknown({"ROLLCALL_PREFIX__X": ""}, ["agents", "prefix"], ["agents"])
