"""A secret of any setting is shown nowhere: in no error, log, traceback, JSON or command line."""

import io
import json
import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from rollcall.compose.cluster import Cluster
from rollcall.compose.log_setup import set_up
from rollcall.compose.settings import Settings, load_settings
from rollcall.compose.terminal import emit_json, page
from rollcall.compose.workers.supervisor import Supervisor
from rollcall.schemas import redaction, weights_store
from rollcall.schemas.errors import Refused, RollcallError
from rollcall.schemas.redaction import SHOWN, add_secrets_of_url, redact

CANARY = "kanarienvogel-7%2F"
URLS = [
    f"{scheme}://{user}@127.0.0.1:9/place"
    for scheme in ("http", "https", "s3", "ftp", "sftp", "gs", "webhdfs", "postgresql+psycopg")
    for user in (f"user:{CANARY}", CANARY, f":{CANARY}", f"us%40er:{CANARY}@more")
] + [
    f"az://container/place?sv=2020&sig={CANARY}&se=1", f"https://h/p?access_token={CANARY}",
    f"https://h/p?X-Amz-Signature={CANARY}", f"https://h/p?x=1;apiKey={CANARY}#f",
]  # fmt: skip
CLIENT = {
    "kafka": [
        "sasl.password", "ssl.key.password", "ssl.keystore.password", "ssl.key.pem",
        "sasl.oauthbearer.client.secret", "sasl.oauthbearer.config",
        "sasl.oauthbearer.client.credentials.client.secret",
    ],
    "registry": [
        "basic.auth.user.info", "ssl.key.password", "bearer.auth.token",
        "bearer.auth.client.secret",
    ],
}  # fmt: skip


def spelt(secret: str) -> set[str]:
    return {secret, quote(secret, ""), quote_plus(secret), repr(secret)[1:-1]}


def is_clean(text: str) -> bool:
    return not any(each in text for each in spelt("kanarienvogel"))


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Forget the secrets of one test before the next."""
    before = dict(redaction._known)
    yield
    redaction._known.clear()
    redaction._known.update(before)


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """The log output of a worker."""
    out, root = io.StringIO(), logging.getLogger()
    handlers, hooks = root.handlers[:], (sys.excepthook, threading.excepthook)
    root.handlers[:] = []
    set_up("role", "worker", out)
    yield out
    root.handlers[:] = handlers
    sys.excepthook, threading.excepthook = hooks
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@pytest.mark.parametrize("url", URLS)
def test_url_is_shown_without_its_secrets_even_when_unregistered(url: str) -> None:
    assert is_clean(redact(f"cannot open {url!r}: 403, as '{url}' says"))


@pytest.mark.parametrize("url", URLS)
def test_secret_of_a_known_url_is_hidden_in_every_spelling(url: str) -> None:
    add_secrets_of_url(url)

    for each in spelt(CANARY):
        assert is_clean(redact(f"login as user with {each} failed"))


@pytest.mark.parametrize(("part", "name"), [(p, name) for p in CLIENT for name in CLIENT[p]])
def test_client_secrets_are_recognised_by_their_setting_names(
    part: str, name: str, logged: io.StringIO
) -> None:
    value = f"user:{CANARY}" if name == "basic.auth.user.info" else CANARY
    Settings.model_validate({part: {"client": {name: value}}})

    structlog.get_logger().warning("refused", error=f"bad {CANARY}", given={name: [CANARY]})
    logging.getLogger("library").warning("bad password %s", CANARY)

    assert is_clean(logged.getvalue())
    assert logged.getvalue().count(SHOWN) == 3
    assert is_clean(str(RollcallError(f"no broker takes {CANARY}")))


def tables(client: str) -> Mapping[str, str]:
    return {"ROLLCALL_KAFKA__CLIENT": client, "ROLLCALL_REGISTRY__CLIENT": client}


@pytest.mark.parametrize(
    "variables",
    [
        {"ROLLCALL_OBJECTS__URL": f"s3://a:{CANARY}@b", "ROLLCALL_OBJECTS__ABOVE_BYTES": "1"},
        {"ROLLCALL_OBJECTS": f"s3://a:{CANARY}@b"},
        {"ROLLCALL_REGISTRY__URL": f"http://u:{CANARY}@h", "ROLLCALL_AGENTS__MAX_LIVE": "x"},
        tables(f'{{"sasl.password": "{CANARY}"'),
        tables(f'["{CANARY}"]'),
        tables(f'{{"sasl.password": ["{CANARY}"], "x": 1}}'),
        tables(f'{{"sasl.password": {{"in": "{CANARY}"}}}}'),
        {"ROLLCALL_KAFKA__CLIENT__SASL_PASSWORD__X": CANARY},
    ],
)
def test_invalid_setting_is_one_line_without_secrets(
    variables: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(Refused) as refused:
        load_settings()

    assert is_clean(str(refused.value))
    assert "\n" not in str(refused.value)


def test_errors_of_unreachable_stores_and_registries_contain_no_secrets(
    logged: io.StringIO,
) -> None:
    for url in URLS[:24]:
        settings = Settings.model_validate(
            {"objects": {"url": url.replace("https", "http")}, "registry": {"url": url}}
        )
        here = Cluster("127.0.0.1:9", settings.registry.url, settings)
        said = []
        for call in (
            lambda here=here: here.registry.schema_of(1),
            lambda url=url: weights_store.content(url),
            lambda url=url: weights_store.listed(url),
            lambda url=url: weights_store.put(url, [b"x"], lambda: "x"),
        ):
            with pytest.raises(RollcallError) as raised:
                call()
            said.append(str(raised.value))
            structlog.get_logger().warning("away", error=str(raised.value), exc_info=raised.value)
        assert is_clean("".join(said)), said
    assert is_clean(logged.getvalue())


def test_tracebacks_of_uncaught_errors_contain_no_secrets(
    capsys: pytest.CaptureFixture[str], logged: io.StringIO
) -> None:
    add_secrets_of_url(f"ftp://user:{CANARY}@host")

    def fail() -> None:
        msg = f"login {CANARY}"
        raise OSError(msg)

    try:
        fail()
    except OSError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    thread = threading.Thread(target=fail, name="reader")
    thread.start()
    thread.join()

    printed = capsys.readouterr().err
    assert is_clean(printed)
    assert printed.count("OSError: login ***") == 2
    assert "Exception in reader" in printed


def test_json_and_pages_contain_no_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    emit_json({"url": URLS[0], "all": URLS})
    with page() as terminal:
        terminal.print(URLS[0])

    printed = capsys.readouterr().out
    assert is_clean(printed)
    assert json.loads(printed[: printed.index("\n}") + 2])["all"]


def test_no_command_line_of_a_worker_holds_a_secret(tmp_path: Path) -> None:
    settings = Settings.model_validate(
        {
            "state_dir": tmp_path,
            "objects": {"url": f"s3://a:{CANARY}@b"},
            "kafka": {"client": {"sasl.password": CANARY}},
        }
    )
    here = Cluster("127.0.0.1:9", f"http://u:{CANARY}@127.0.0.1:9", settings)
    supervisor = Supervisor(tmp_path / "logs", {**here.environment(), "PYTHONPATH": "/nowhere"})

    for role in ("agents", "models", "environments", "rewards", "training", "archive"):
        supervisor.start(role, role)

    for child in supervisor.children.values():
        assert child.process is not None
        assert is_clean(str(child.process.args))
    supervisor.stop()
    assert all(is_clean(path.read_text()) for path in (tmp_path / "logs").iterdir())


@given(st.text(), st.text(min_size=redaction.SHORTEST))
def test_hiding_a_secret_leaves_other_text_unchanged(before: str, secret: str) -> None:
    redaction._known.clear()
    redaction.add_secret(secret)

    assert secret not in redact(f"{before}{secret}") or secret in SHOWN
    redaction._known.clear()
    if "://" not in before and "=" not in before:
        assert redact(before) == before
